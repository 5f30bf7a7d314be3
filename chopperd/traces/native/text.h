/* The innermost loops of the scanner: blanks, and the special bytes of strings, 16 at a time. */
#ifndef CHOPPERD_TEXT_H
#define CHOPPERD_TEXT_H

#include <stdint.h>

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

#endif
