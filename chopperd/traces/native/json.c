/* Where a JSON value ends. Nested values are followed without recursion, down to a depth that no
 * profiler writes. */
#include "scanner.h"
#include "text.h"

#define DEEPEST 512

static const char *stop(const char *at, const char *end, state_t *state)
{
    *state = at >= end ? CUT : DAMAGED;
    return at;
}

static bool is_hex(char byte)
{
    return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f') ||
           (byte >= 'A' && byte <= 'F');
}

/* Behind the escape whose backslash is at `at`. */
static const char *after_escape(const char *at, const char *end, state_t *state)
{
    at++;
    if (*at == 'u') {
        for (int digit = 1; digit <= 4; digit++)
            if (!is_hex(at[digit]))
                return stop(at + digit, end, state);
        return at + 5;
    }
    switch (*at) {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't':
        return at + 1;
    default:
        return stop(at, end, state);
    }
}

const char *after_string(const char *at, const char *end, state_t *state)
{
    *state = WHOLE;
    at++;
    for (;;) {
        at = next_special(at, end);
        if (*at == '"')
            return at + 1;
        if (*at != '\\')
            return stop(at, end, state);
        while (*at == '\\') {
            at = after_escape(at, end, state);
            if (*state != WHOLE)
                return at;
        }
    }
}

static bool is_digit(char byte)
{
    return byte >= '0' && byte <= '9';
}

const char *after_number(const char *at, const char *end, state_t *state)
{
    if (*at == '-')
        at++;
    if (!is_digit(*at))
        return stop(at, end, state);
    at = *at == '0' ? at + 1 : after_digits(at, end);
    if (*at == '.') {
        if (!is_digit(*++at))
            return stop(at, end, state);
        at = after_digits(at, end);
    }
    if (*at == 'e' || *at == 'E') {
        at++;
        if (*at == '+' || *at == '-')
            at++;
        if (!is_digit(*at))
            return stop(at, end, state);
        at = after_digits(at, end);
    }
    return at;
}

static const char *after_word(const char *at, const char *word, const char *end, state_t *state)
{
    while (*word && *at == *word)
        at++, word++;
    return *word ? stop(at, end, state) : at;
}

/* Behind a value that holds no others. Python's json writes NaN and infinities too. */
static const char *after_scalar(const char *at, const char *end, state_t *state)
{
    *state = WHOLE;
    switch (*at) {
    case '"':
        return after_string(at, end, state);
    case 't':
        return after_word(at, "true", end, state);
    case 'f':
        return after_word(at, "false", end, state);
    case 'n':
        return after_word(at, "null", end, state);
    case 'N':
        return after_word(at, "NaN", end, state);
    case 'I':
        return after_word(at, "Infinity", end, state);
    case '-':
        if (at[1] == 'I')
            return after_word(at + 1, "Infinity", end, state);
        break;
    default:
        break;
    }
    return after_number(at, end, state);
}

const char *after_plain(const char *at, const char *end, state_t *state, bool *is_null)
{
    const char *word = at, *next, *behind;
    *is_null = *at == ',' || *at == '}' || *at == ']';
    *state = WHOLE;
    if (*is_null)
        return at;
    behind = after_scalar(at, end, state);
    if (*state == CUT || (*state == WHOLE && !is_of_word(*behind)))
        return behind;
    while (is_of_word(*word))
        word++;
    next = after_blanks(word, end);
    *state = word > at && next >= end ? CUT : DAMAGED;
    if (word == at || (*next != ',' && *next != '}' && *next != ']'))
        return behind;
    *is_null = true;
    *state = WHOLE;
    return word;
}

/* Behind the key at `at` and its colon. */
static const char *after_key(const char *at, const char *end, state_t *state)
{
    if (*at != '"')
        return stop(at, end, state);
    at = after_string(at, end, state);
    if (*state != WHOLE)
        return at;
    at = after_blanks(at, end);
    return *at == ':' ? after_blanks(at + 1, end) : stop(at, end, state);
}

const char *after_value(const char *at, const char *end, state_t *state)
{
    char closing[DEEPEST];
    bool is_null;
    int depth = 0;
    for (;;) {
        *state = WHOLE;
        if (*at == '{' || *at == '[') {
            if (depth == DEEPEST)
                return stop(at, end, state);
            closing[depth++] = *at == '{' ? '}' : ']';
            at = after_blanks(at + 1, end);
            if (*at != closing[depth - 1]) {
                if (closing[depth - 1] == '}') {
                    at = after_key(at, end, state);
                    if (*state != WHOLE)
                        return at;
                }
                continue;
            }
            at++;
            depth--;
        } else if (depth == 0 || *at == '"') {
            at = after_scalar(at, end, state);
            if (*state != WHOLE)
                return at;
        } else {
            at = after_plain(at, end, state, &is_null);
            if (*state != WHOLE)
                return at;
        }
        for (;;) {
            if (depth == 0)
                return at;
            at = after_blanks(at, end);
            if (*at != closing[depth - 1])
                break;
            at++;
            depth--;
        }
        if (*at != ',')
            return stop(at, end, state);
        at = after_blanks(at + 1, end);
        if (closing[depth - 1] == '}') {
            at = after_key(at, end, state);
            if (*state != WHOLE)
                return at;
        }
    }
}
