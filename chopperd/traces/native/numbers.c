/* Decimals to whole ns, exactly; fields of mixed type to integers. */
#include "scanner.h"

#include <stdlib.h>
#include <string.h>

#define NS_DIGITS 3             /* of a microsecond */
#define FARTHEST_US 4000000000000000 /* the year 2096; such times add up within int64 ns */
#define MOST_DIGITS 36          /* what 128 bits hold */
#define PLAIN_DIGITS 19         /* what 64 bits hold */
#define MOST_EXPONENT 100000
#define LONGEST_TEXT 64         /* that may be a number */

__extension__ typedef unsigned __int128 wide_t;

/* A decimal: digits x 10^exponent, `rest` where digits that are not 0 were left out. */
typedef struct {
    wide_t digits;
    int64_t exponent;
    bool negative, rest;
} decimal_t;

static bool is_digit(char byte)
{
    return byte >= '0' && byte <= '9';
}

static const char *take_digits(decimal_t *decimal, const char *at, int64_t each, int *count)
{
    for (; is_digit(*at); at++) {
        if (*count < MOST_DIGITS) {
            decimal->digits = decimal->digits * 10 + (unsigned)(*at - '0');
            *count += decimal->digits != 0;
            decimal->exponent += each;
        } else {
            decimal->rest |= *at != '0';
            decimal->exponent += each + 1;
        }
    }
    return at;
}

/* The number that a text is, as JSON writes numbers; false where it is none, or goes on. */
static bool parse(decimal_t *decimal, const char *at, const char *end)
{
    int count = 0;
    memset(decimal, 0, sizeof(*decimal));
    decimal->negative = *at == '-';
    at += decimal->negative;
    if (!is_digit(*at))
        return false;
    at = take_digits(decimal, at, 0, &count);
    if (*at == '.')
        at = take_digits(decimal, at + 1, -1, &count);
    if (*at == 'e' || *at == 'E') {
        bool negative = *++at == '-';
        int64_t exponent = 0;
        at += *at == '-' || *at == '+';
        for (; is_digit(*at); at++)
            if (exponent < MOST_EXPONENT)
                exponent = exponent * 10 + (*at - '0');
        decimal->exponent += negative ? -exponent : exponent;
    }
    return at == end;
}

/* digits x 10^exponent as a whole number, halves to even; false where it is beyond `most`. */
static bool rounded(const decimal_t *decimal, int64_t exponent, int64_t most, int64_t *whole)
{
    wide_t digits = decimal->digits, limit = (wide_t)most, unit = 1, left, twice;
    for (; exponent > 0 && digits != 0; exponent--) {
        digits *= 10;
        if (digits > limit)
            return false;
    }
    for (; exponent < 0; exponent++) {
        if (unit > digits) { /* less than a tenth of one remains */
            *whole = 0;
            return true;
        }
        unit *= 10;
    }
    left = digits % unit;
    digits /= unit;
    if (digits > limit)
        return false;
    twice = 2 * left;
    if (twice > unit || (twice == unit && (decimal->rest || digits % 2 == 1)))
        digits++;
    *whole = (int64_t)digits;
    return digits <= limit;
}

/* A time as profilers write it, digits and at most three more behind a point; false for others. */
static bool plain_ns(const char *at, const char *end, int64_t *ns)
{
    uint64_t number = 0;
    int64_t digits = end - at;
    int decimals = 0;
    for (; at < end && is_digit(*at); at++)
        number = number * 10 + (unsigned)(*at - '0');
    if (at < end && *at == '.') {
        digits--;
        for (at++; at < end && is_digit(*at); at++, decimals++)
            number = number * 10 + (unsigned)(*at - '0');
    }
    if (at != end || digits > PLAIN_DIGITS || decimals > NS_DIGITS)
        return false;
    for (; decimals < NS_DIGITS; decimals++) {
        if (number > FARTHEST_US)
            return false;
        number *= 10;
    }
    *ns = (int64_t)number;
    return number <= FARTHEST_US * 1000;
}

/* The nearest ns to a time in us: a number, or a text that is one. */
int64_t ns_from_us(const token_t *token)
{
    char plain[LONGEST_TEXT + 1];
    const char *at, *end;
    decimal_t decimal;
    state_t state = WHOLE;
    int64_t ns;
    if (token->kind == '"') {
        int64_t size = plain_text(plain, LONGEST_TEXT, token);
        if (size < 0)
            return NO_TIME;
        plain[size] = '\0';
        at = plain;
        end = plain + size;
        if (after_number(at, end, &state) != end || state != WHOLE)
            return NO_TIME;
    } else if (token->kind == '-' || is_digit(token->kind)) {
        at = token->at;
        end = at + token->size;
        if (plain_ns(at, end, &ns))
            return ns;
    } else {
        return NO_TIME;
    }
    if (!parse(&decimal, at, end))
        return NO_TIME;
    if (!rounded(&decimal, decimal.exponent + NS_DIGITS, FARTHEST_US * 1000, &ns))
        return NO_TIME;
    return decimal.negative ? -ns : ns;
}

static int64_t integer_of(const char *at, const char *end)
{
    bool negative = *at == '-';
    uint64_t number = 0, most = (uint64_t)INT64_MAX + negative;
    at += *at == '-' || *at == '+';
    if (at == end)
        return ABSENT;
    for (; at < end; at++) {
        unsigned digit = (unsigned)(*at - '0');
        if (!is_digit(*at) || number > (most - digit) / 10)
            return ABSENT;
        number = number * 10 + digit;
    }
    return negative ? (int64_t)(0 - number) : (int64_t)number;
}

static int64_t hexadecimal_of(const char *at, const char *end)
{
    uint64_t number = 0;
    if (at == end)
        return ABSENT;
    for (; at < end; at++) {
        char low = *at | 0x20;
        bool is_letter = low >= 'a' && low <= 'f';
        if ((!is_digit(*at) && !is_letter) || number > (uint64_t)INT64_MAX >> 4)
            return ABSENT;
        number = number << 4 | (unsigned)(is_letter ? low - 'a' + 10 : *at - '0');
    }
    return (int64_t)number;
}

/* "7", "stream 7" and "0x7" are 7. */
static int64_t integer_of_text(const token_t *token)
{
    static const char stream[] = "stream ";
    char plain[LONGEST_TEXT + 1];
    int64_t size = plain_text(plain, LONGEST_TEXT, token);
    const char *at = plain, *end = plain + size;
    if (size < 0)
        return ABSENT;
    plain[size] = '\0';
    while (at < end && *at == ' ')
        at++;
    while (at < end && end[-1] == ' ')
        end--;
    if (end - at > 2 && at[0] == '0' && (at[1] | 0x20) == 'x')
        return hexadecimal_of(at + 2, end);
    if (end - at >= (int64_t)sizeof(stream) && memcmp(at, stream, sizeof(stream) - 1) == 0) {
        for (at += sizeof(stream) - 1; at < end && *at == ' ';)
            at++;
        if (*at == '+')
            return ABSENT;
    }
    return integer_of(at, end);
}

/* The 64 bits of a whole number of a base between two places. */
static int64_t bits_of(const char *at, const char *end, unsigned base, uint64_t most)
{
    uint64_t number = 0;
    if (at == end)
        return ABSENT;
    for (; at < end; at++) {
        char low = *at | 0x20;
        unsigned digit = is_digit(*at) ? (unsigned)(*at - '0') : (unsigned)(low - 'a') + 10;
        if ((!is_digit(*at) && (low < 'a' || low > 'f')) || digit >= base ||
            number > (most - digit) / base)
            return ABSENT;
        number = number * base + digit;
    }
    return (int64_t)number;
}

int64_t bits_from(const token_t *token)
{
    char plain[LONGEST_TEXT + 1];
    const char *at = token->at, *end = at + token->size;
    if (token->kind == '"') {
        int64_t size = plain_text(plain, LONGEST_TEXT, token);
        if (size < 0)
            return ABSENT;
        at = plain;
        end = plain + size;
        while (at < end && *at == ' ')
            at++;
        while (at < end && end[-1] == ' ')
            end--;
        if (end - at > 2 && at[0] == '0' && (at[1] | 0x20) == 'x')
            return bits_of(at + 2, end, 16, UINT64_MAX);
        if (at < end && *at == '+')
            return bits_of(at + 1, end, 10, UINT64_MAX);
    } else if (token->kind != '-' && !is_digit(token->kind)) {
        return ABSENT;
    }
    if (at < end && *at == '-') {
        int64_t bits = bits_of(at + 1, end, 10, (uint64_t)INT64_MAX + 1);
        return bits == ABSENT ? ABSENT : (int64_t)(0 - (uint64_t)bits);
    }
    return bits_of(at, end, 10, UINT64_MAX);
}

/* The integer of a value; ABSENT if it has none, or int64 can't hold it. */
int64_t integer_from(const token_t *token)
{
    const char *end;
    if (token->kind == '"')
        return integer_of_text(token);
    if (token->kind == 't' || token->kind == 'f')
        return token->kind == 't';
    if (token->kind != '-' && !is_digit(token->kind))
        return ABSENT;
    end = token->at + token->size;
    for (const char *at = token->at; at < end; at++)
        if (*at == '.' || *at == 'e' || *at == 'E') {
            double number = strtod(token->at, NULL);
            return number >= -0x1p63 && number < 0x1p63 ? (int64_t)number : ABSENT;
        }
    return integer_of(token->at, end);
}
