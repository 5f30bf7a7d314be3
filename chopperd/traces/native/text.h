/* The innermost loops of the scanner: blanks, digits, the special bytes of strings, known pieces;
 * 16 bytes at a time. */
#ifndef CHOPPERD_TEXT_H
#define CHOPPERD_TEXT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#define LANES 16
#endif

static inline const char *after_blanks(const char *at, const char *end)
{
    if ((unsigned char)*at > ' ')
        return at;
#if defined(LANES)
    const __m128i blank = _mm_set1_epi8(' '), feed = _mm_set1_epi8('\n');
    while (end - at >= LANES) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);
        __m128i are_blank = _mm_or_si128(_mm_cmpeq_epi8(bytes, blank), _mm_cmpeq_epi8(bytes, feed));
        unsigned others = ~(unsigned)_mm_movemask_epi8(are_blank) & 0xffff;
        if (others) {
            at += __builtin_ctz(others);
            break;
        }
        at += LANES;
    }
#else
    (void)end;
#endif
    while (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')
        at++;
    return at;
}

static inline bool is_of_word(char byte)
{
    return (byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z') ||
           byte == '-' || byte == '.' || byte == '_' || byte == '+';
}

/* The next quote, backslash or control byte of a string. */
static inline const char *next_special(const char *at, const char *end)
{
#if defined(LANES)
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\');
    const __m128i last_control = _mm_set1_epi8(0x1f);
    for (; end - at >= LANES; at += LANES) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);
        __m128i is_control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, last_control), bytes);
        __m128i is_special = _mm_or_si128(
            is_control,
            _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash)));
        unsigned mask = (unsigned)_mm_movemask_epi8(is_special);
        if (mask)
            return at + __builtin_ctz(mask);
    }
#else
    (void)end;
#endif
    while (*at != '"' && *at != '\\' && (unsigned char)*at >= 0x20)
        at++;
    return at;
}

static inline const char *after_digits(const char *at, const char *end)
{
#if defined(LANES)
    const __m128i zero = _mm_set1_epi8('0'), nine = _mm_set1_epi8(9);
    for (; end - at >= LANES; at += LANES) {
        __m128i digits = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)(const void *)at), zero);
        __m128i are_digits = _mm_cmpeq_epi8(_mm_min_epu8(digits, nine), digits);
        unsigned others = ~(unsigned)_mm_movemask_epi8(are_digits) & 0xffff;
        if (others)
            return at + __builtin_ctz(others);
    }
#else
    (void)end;
#endif
    while (*at >= '0' && *at <= '9')
        at++;
    return at;
}

/* Whether the text at `at` starts with the first `size` bytes of a piece. Either has PIECE_BYTES that
 * can be read. */
static inline bool starts_with(const char *at, const char *piece, int size)
{
#if defined(LANES)
    for (; size > 0; at += LANES, piece += LANES, size -= LANES) {
        __m128i one = _mm_loadu_si128((const __m128i *)(const void *)at);
        __m128i other = _mm_loadu_si128((const __m128i *)(const void *)piece);
        unsigned same = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(one, other));
        unsigned wanted = size < LANES ? (1u << size) - 1 : 0xffff;
        if ((same & wanted) != wanted)
            return false;
    }
    return true;
#else
    return memcmp(at, piece, (size_t)size) == 0;
#endif
}

#endif
