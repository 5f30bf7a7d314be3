/* The keys of an event. Of a key that comes twice the last counts. */
#include "between.h"
#include "scanner.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(ARG_KEYS <= 32, "args_found has a bit for each");

#define IS(word) (memcmp(text, word, sizeof(word) - 1) == 0)

static int event_key(const char *text, int64_t size)
{
    switch (size) {
    case 2:
        return IS("ph") ? PH : IS("ts") ? TS : IS("id") ? ID : -1;
    case 3:
        return IS("cat") ? CAT : IS("pid") ? PID : IS("tid") ? TID : IS("dur") ? DUR : -1;
    case 4:
        return IS("name") ? NAME : IS("args") ? ARGS : -1;
    default:
        return -1;
    }
}

static int arg_key(const char *text, int64_t size)
{
    switch (size) {
    case 3:
        return IS("Seq") ? SEQ : -1;
    case 4:
        return IS("size") ? SIZE : IS("name") ? MARK_NAME : IS("Addr") ? ADDRESS : -1;
    case 5:
        return IS("bytes")   ? BYTES
               : IS("dtype") ? DTYPE
               : IS("phase") ? MARK_PHASE
               : IS("Bytes") ? ALLOCATED_BYTES
                             : -1;
    case 6:
        return IS("device") ? DEVICE : IS("stream") ? STREAM : -1;
    case 8:
        return IS("Comms Id") ? COMMS_ID : -1;
    case 9:
        return IS("hsa_queue") ? HSA_QUEUE : IS("Device Id") ? DEVICE_ID : -1;
    case 10:
        return IS("Input Dims")   ? DIMS
               : IS("Input type") ? TYPES
               : IS("Group size") ? GROUP_SIZE
               : IS("module_fqn") ? MARK_MODULE
                                  : -1;
    case 11:
        return IS("External id")   ? EXTERNAL_ID
               : IS("correlation") ? CORRELATION
               : IS("external id") ? EXTERNAL_ID_OF_2021
               : IS("Device Type") ? DEVICE_TYPE
                                   : -1;
    case 13:
        return IS("Fwd thread id") ? FORWARD_THREAD : IS("In msg nelems") ? IN_ELEMENTS : -1;
    case 14:
        return IS("Out msg nelems") ? OUT_ELEMENTS : IS("Total Reserved") ? TOTAL_RESERVED : -1;
    case 15:
        return IS("Sequence number")   ? SEQUENCE
               : IS("Concrete Inputs") ? VALUES
               : IS("Collective name") ? COLLECTIVE
               : IS("Total Allocated") ? TOTAL_ALLOCATED
                                       : -1;
    case 18:
        return IS("Process Group Name") ? GROUP : -1;
    case 19:
        return IS("Process Group Ranks") ? RANKS : -1;
    case 25:
        return IS("Process Group Description") ? GROUP_DESCRIPTION : -1;
    default:
        return -1;
    }
}

/* The text of a key without escapes of ASCII characters, all that the keys read here have.
 * The length, or -1 if it is longer than all of those. */
static int64_t unescaped(char *to, int64_t room, const token_t *token)
{
    static const char escapes[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    const char *at = token->at + 1, *end = token->at + token->size - 1;
    int64_t size = 0;
    while (at < end) {
        if (size == room)
            return -1;
        if (*at != '\\') {
            to[size++] = *at++;
        } else if (at[1] == 'u') {
            char digits[5] = {at[2], at[3], at[4], at[5], 0};
            long code = strtol(digits, NULL, 16);
            to[size++] = code < 0x80 ? (char)code : '\xff';
            at += 6;
        } else {
            for (const char *escape = escapes; *escape; escape += 2)
                if (*escape == at[1])
                    to[size] = escape[1];
            size++;
            at += 2;
        }
    }
    return size;
}

int64_t plain_text(char *to, int64_t room, const token_t *token)
{
    if (memchr(token->at, '\\', (size_t)token->size))
        return unescaped(to, room, token);
    if (token->size - 2 > room)
        return -1;
    memcpy(to, token->at + 1, (size_t)token->size - 2);
    return token->size - 2;
}

static void forget(token_t *tokens, uint32_t *found)
{
    for (; *found; *found &= *found - 1)
        tokens[__builtin_ctz(*found)].kind = 0;
}

static int key_number(const token_t *key, bool has_escape, bool in_args)
{
    const char *text = key->at + 1;
    int64_t size = key->size - 2;
    char plain[32];
    if (has_escape) {
        size = unescaped(plain, sizeof(plain), key);
        text = plain;
    }
    return in_args ? arg_key(text, size) : event_key(text, size);
}

/* Reads a value that is mostly a number or a text without escapes; behind it. */
static inline const char *read_value(
    const char *at, const char *end, token_t *value, state_t *state)
{
    bool is_null = false;
    value->at = at;
    value->kind = *at;
    if (*at == '"') {
        const char *close = next_special(at + 1, end);
        *state = WHOLE;
        at = *close == '"' ? close + 1 : after_string(at, end, state);
    } else if (*at == '{' || *at == '[') {
        at = after_value(at, end, state);
    } else if (*at > '0' && *at <= '9' && !is_of_word(*(at = after_digits(at, end)))) {
        *state = WHOLE;
    } else {
        at = after_plain(value->at, end, state, &is_null);
    }
    value->size = at - value->at;
    if (is_null)
        *value = (token_t){.at = "null", .size = 4, .kind = 'n'};
    return at;
}

static const char *broken(const char *at, const char *end, state_t *state)
{
    *state = at >= end ? CUT : DAMAGED;
    return at;
}

/* The piece at `at`: at the brace of an object if it `opens`, else behind one of its values. */
static const char *read_piece(
    const char *at, const char *end, bool opens, piece_t *piece, state_t *state)
{
    const char *start = at;
    bool has_escape;
    token_t key;
    *state = WHOLE;
    at = after_blanks(opens ? at + 1 : at, end);
    if (*at == '}') {
        piece->key = CLOSES;
        at++;
    } else {
        if (!opens) {
            if (*at != ',')
                return broken(at, end, state);
            at = after_blanks(at + 1, end);
        }
        key.at = at;
        if (*at != '"')
            return broken(at, end, state);
        at = next_special(at + 1, end);
        has_escape = *at != '"';
        at = has_escape ? after_string(key.at, end, state) : at + 1;
        if (*state != WHOLE)
            return at;
        key.size = at - key.at;
        at = after_blanks(at, end);
        if (*at != ':')
            return broken(at, end, state);
        at = after_blanks(at + 1, end);
        piece->key = (int16_t)key_number(&key, has_escape, piece->in_args);
    }
    piece->size = at - start > PIECE_BYTES ? PIECE_BYTES + 1 : (int16_t)(at - start);
    return at;
}

/* Behind the next piece, which is read where it is not known; its number becomes that before. */
static inline const char *next_piece(
    const char *at, const char *end, bool opens, pieces_t *pieces, piece_t *piece, state_t *state)
{
    const char *start = at;
    int before = piece->number;
    const piece_t *known = known_piece(pieces, before, at, end);
    if (known) {
        *piece = *known;
        *state = WHOLE;
        at += piece->size;
        return piece->key == CLOSES ? at : after_blanks(at, end);
    }
    at = read_piece(at, end, opens, piece, state);
    if (*state == WHOLE)
        piece->number = remember_piece(pieces, before, start, piece);
    return at;
}

const char *read_keys(
    const char *at, const char *end, pieces_t *pieces, event_t *event, state_t *state)
{
    piece_t piece = {.number = pieces ? FIRST_PIECE : NO_PIECE};
    token_t *args = &event->keys[ARGS];
    bool opens = true;
    forget(event->keys, &event->keys_found);
    forget(event->args, &event->args_found);
    for (;;) {
        bool in_args = piece.in_args;
        token_t value;
        at = next_piece(at, end, opens, pieces, &piece, state);
        if (*state != WHOLE)
            return at;
        opens = false;
        if (piece.key == CLOSES) {
            if (!in_args)
                return at;
            args->size = at - args->at;
            piece.in_args = false;
            continue;
        }
        if (piece.key == ARGS && !in_args) {
            forget(event->args, &event->args_found);
            event->keys_found |= 1u << ARGS;
            if (at == event->stop)
                return broken(at, end, state);
            if (*at == '{') {
                *args = (token_t){.at = at, .kind = '{'};
                piece.in_args = opens = true;
                continue;
            }
            piece.number = NO_PIECE; /* what follows it is known only behind the other kind */
        }
        at = read_value(at, end, &value, state);
        if (*state != WHOLE)
            return at;
        if (piece.key < 0)
            continue;
        (in_args ? event->args : event->keys)[piece.key] = value;
        *(in_args ? &event->args_found : &event->keys_found) |= 1u << piece.key;
    }
}

/* Whether a value is one of those that a field of mixed type may have. */
bool is_scalar(const token_t *token)
{
    if (token->kind >= '0' && token->kind <= '9')
        return true;
    if (token->kind == '-')
        return token->at[1] != 'I';
    return token->kind == '"' || token->kind == 't' || token->kind == 'f';
}

/* The one letter of `ph`; a space where it is a longer text, 0 where it is none. */
char phase_of(const event_t *event)
{
    const token_t *ph = &event->keys[PH];
    char plain[2];
    if (ph->kind != '"')
        return 0;
    return unescaped(plain, sizeof(plain), ph) == 1 ? plain[0] : ' ';
}

/* A number of up to 18 digits, or a text without escapes, behind the key `name` and a colon somewhere
 * before `behind`; false where there is none. */
static bool find_value(const char *at, const char *behind, const char *name, token_t *value)
{
    size_t size = strlen(name);
    for (; (at = memmem(at, (size_t)(behind - at), name, size)) != NULL; at++) {
        const char *next = after_blanks(at + size, behind);
        if (next >= behind || *next != ':')
            continue;
        value->at = next = after_blanks(next + 1, behind);
        value->kind = *next;
        if (next >= behind)
            return false;
        if (*next == '"') {
            next = next_special(next + 1, behind);
            if (next >= behind || *next++ != '"')
                continue;
        } else {
            while (next < behind && *next >= '0' && *next <= '9')
                next++;
            if (next == value->at || next - value->at > 18)
                continue;
        }
        value->size = next - value->at;
        next = after_blanks(next, behind);
        if (next < behind && (*next == ',' || *next == '}'))
            return true;
    }
    return false;
}

bool mend_args(const char *at, const char *end, const char *behind, event_t *event)
{
    static const char *const names[] = {
        "\"device\"", "\"stream\"", "\"correlation\"", "\"External id\"", "\"external id\"",
        "\"Sequence number\"", "\"Fwd thread id\"", "\"bytes\"", "\"size\"", "\"hsa_queue\"",
        "\"Seq\"", "\"Comms Id\"",
        "\"Collective name\"", "\"dtype\"", "\"In msg nelems\"", "\"Out msg nelems\"",
        "\"Process Group Name\"", "\"Process Group Description\"", "\"Group size\"",
        "\"Process Group Ranks\"",
    };
    static const char args[] = "\"args\"";
    const token_t *keys = event->keys;
    const char *key = keys[ARGS].at;
    state_t state;
    if (keys[ARGS].kind != '{' || key >= behind ||
        (keys[ARGS].size && key + keys[ARGS].size <= behind))
        return false; /* damaged elsewhere */
    event->stop = key;
    read_keys(at, end, NULL, event, &state);
    if (phase_of(event) != 'X' || keys[CAT].kind != '"' || keys[TS].kind == 0 ||
        keys[TS].kind == 'n' || keys[DUR].kind == 0 || keys[DUR].kind == 'n')
        return false;
    while (key > at && key[-1] != '"')
        key--;
    key -= sizeof(args) - 1;
    if (key <= at || memcmp(key, args, sizeof(args) - 1) != 0)
        return false;
    forget(event->args, &event->args_found);
    for (int arg = DEVICE; arg <= RANKS; arg++)
        if (find_value(event->stop, behind, names[arg], &event->args[arg]))
            event->args_found |= 1u << arg;
        else
            event->args[arg].kind = 0;
    return true;
}
