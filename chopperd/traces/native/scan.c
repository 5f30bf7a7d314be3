/* One event after another; past those that are damaged, so that one bad name costs one event. */
#include "scanner.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

int64_t scanner_version(void)
{
    return SCANNER_VERSION;
}

int64_t scan_bytes(void)
{
    return sizeof(scan_t);
}

int64_t scan_row_bytes(int64_t table)
{
    static const size_t sizes[TABLES] = {
        sizeof(record_row_t), sizeof(call_row_t), sizeof(span_row_t), sizeof(device_span_row_t),
        sizeof(flow_row_t), sizeof(frame_row_t), sizeof(comms_row_t), sizeof(memory_row_t),
    };
    return table >= 0 && table < TABLES ? (int64_t)sizes[table] : 0;
}

scan_t *scan_open(const char *shaped)
{
    scan_t *scan = calloc(1, sizeof(*scan));
    if (scan == NULL)
        return NULL;
    scan->shaped = shaped;
    scan->pieces = pieces_open(); /* does without, where there is no memory */
    for (int table = 0; table < TABLES; table++)
        scan->tables[table].row_bytes = scan_row_bytes(table);
    return scan;
}

void scan_close(scan_t *scan)
{
    for (int table = 0; table < TABLES; table++)
        free(scan->tables[table].rows);
    for (int which = 0; which < TEXTS; which++)
        free_strings(&scan->texts[which]);
    free(scan->category_counts);
    free(scan->joined);
    pieces_close(scan->pieces);
    free(scan->text);
    free(scan);
}

/* The end of the blanks and commas between two elements. */
static const char *after_separators(const char *at)
{
    while (*at == ' ' || *at == ',' || (*at >= '\t' && *at <= '\r'))
        at++;
    return at;
}

static const char *after_spaces(const char *at)
{
    while (*at == ' ' || (*at >= '\t' && *at <= '\r'))
        at++;
    return at;
}

static bool begins(const char *at, const char *word)
{
    while (*word && *at == *word)
        at++, word++;
    return !*word;
}

/* Whether one of the keys with which events begin is here: those of salvage.py. */
static bool is_event_key(const char *at)
{
    if (*at++ != '"')
        return false;
    switch (*at) {
    case 'a':
        return begins(at, "args\"");
    case 'b':
        return begins(at, "bp\"");
    case 'c':
        return begins(at, "cat\"");
    case 'd':
        return begins(at, "dur\"");
    case 'i':
        return begins(at, "id\"");
    case 'n':
        return begins(at, "name\"");
    case 'p':
        return begins(at, "ph\"") || begins(at, "pid\"");
    case 's':
        return begins(at, "s\"");
    case 't':
        return begins(at, "tid\"") || begins(at, "ts\"");
    default:
        return false;
    }
}

/* Where the next event seems to start: after a brace and a comma, a brace and a key of events. A text
 * or a list inside an event may contain the same. `border` is the brace before it. NULL if there is
 * none. */
static const char *next_start(const char *at, const char *end, const char **border)
{
    while ((at = memchr(at, '}', (size_t)(end - at))) != NULL) {
        while (at[1] == '}')
            at++;
        const char *start = after_spaces(at + 1);
        if (*start == ',') {
            start = after_spaces(start + 1);
            if (*start == '{' && is_event_key(after_spaces(start + 1))) {
                *border = at;
                return start;
            }
        }
        at++;
    }
    return NULL;
}

/* Whether a number or a word is an element on its own; without a separator behind it, it is a piece
 * of something else. */
static bool is_word(const char *at, const char *end)
{
    const char *behind = at;
    while (is_of_word(*behind))
        behind++;
    return behind > at && (behind == end || *behind == ']' || after_separators(behind) > behind);
}

/* Behind a number or a word, which ends where its letters do: damaged where it is no JSON value, as
 * 00 and nullx, and where it is a value only in the place of a number, as NaN. */
static const char *read_word(const char *at, const char *end, state_t *state)
{
    const char *behind = at, *value_end = after_value(at, end, state);
    while (is_of_word(*behind))
        behind++;
    if (*at == 'N' || *at == 'I' || (*at == '-' && at[1] == 'I') ||
        (*state == WHOLE && value_end != behind))
        *state = DAMAGED;
    return behind;
}

typedef enum { STARTS, STARTS_NOT, NOT_IN_SIGHT } start_t;

/* Behind the element at `at`. `is_event`: whether it is an object with a phase. */
static const char *read_element(
    const char *at, const char *end, pieces_t *pieces, event_t *event, state_t *state,
    bool *is_event)
{
    *is_event = false;
    if (is_of_word(*at)) {
        *state = DAMAGED;
        return at;
    }
    if (*at != '{')
        return *at == '"' ? after_string(at, end, state) : after_value(at, end, state);
    at = read_keys(at, end, pieces, event, state);
    *is_event = *state == WHOLE && event->keys[PH].kind == '"';
    return at;
}

/* Whether an event, damaged or not, starts here. Objects nested in a damaged event resemble
 * events, but have no phase. */
static start_t starts_event(const char *at, const char *end, bool final)
{
    const char *border;
    event_t event = {0};
    state_t state;
    bool is_event;
    read_element(at, end, NULL, &event, &state, &is_event);
    if (state == WHOLE)
        return is_event ? STARTS : STARTS_NOT;
    if (state == CUT && !final)
        return NOT_IN_SIGHT;
    if (next_start(at, end, &border) == NULL) {
        if (!final)
            return NOT_IN_SIGHT;
        border = end;
    }
    return memmem(at, (size_t)(border - at), "\"ph\"", 4) ? STARTS : STARTS_NOT;
}

/* Where the next event starts behind a damaged element; NULL where none is in sight: then one may
 * start behind `*searched` only. */
static const char *behind_damage(
    const char *at, const char *end, bool final, const char **searched)
{
    const char *border, *last = memrchr(at, '}', (size_t)(end - at));
    *searched = last ? last : end;
    while ((at = next_start(at, end, &border)) != NULL) {
        start_t start = starts_event(at, end, final);
        if (start == STARTS)
            return at;
        if (start == NOT_IN_SIGHT) {
            *searched = border;
            return NULL;
        }
    }
    return NULL;
}

/* Take the event at `at`, which is damaged, if that is so in its arguments only. */
static bool take_mended(scan_t *scan, const char *at, const char *behind, const char *end)
{
    event_t event = {0};
    state_t state;
    bool is_event;
    read_element(at, end, NULL, &event, &state, &is_event);
    if (*at != '{' || !mend_args(at, end, behind, &event))
        return false;
    take_event(scan, &event);
    return true;
}

/* Begin again with no rows, and nothing counted. */
void scan_empty(scan_t *scan)
{
    for (int table = 0; table < TABLES; table++)
        scan->tables[table].count = 0;
    for (int64_t category = 0; category < scan->texts[CATEGORIES].count; category++)
        scan->category_counts[category] = 0;
    scan->damaged = scan->damaged_args = scan->undecodable = scan->undecodable_rows = 0;
    scan->invalid_records = scan->has_queues = scan->out_of_memory = 0;
}

/* Reads the elements of the array that start before `limit`; the text may go on behind it. `text`
 * starts between two elements. `final`: the file ends where the text does. `searched`: the first
 * element is damaged, and before there no event starts behind it; 0 where that is not known. Rows and
 * counts are added to those that are there. */
int64_t scan_events(
    scan_t *scan, const char *text, int64_t size, int64_t limit, int64_t final, int64_t searched)
{
    const char *at = text, *end = text + size, *stop = text + limit;
    event_t event = {0};
    scan->outcome = MORE;
    scan->searched = 0;
    for (;; searched = 0) {
        const char *next, *behind = at;
        state_t state = DAMAGED;
        bool is_event = false, alone = false;
        at = after_separators(at);
        scan->consumed = at - text;
        if (at >= stop || at >= end || scan->out_of_memory)
            break;
        if (*at == ']') {
            scan->consumed++;
            scan->outcome = ENDED;
            break;
        }
        if (searched)
            next = text + searched;
        else if ((alone = is_word(at, end)))
            next = read_word(at, end, &state);
        else
            next = read_element(at, end, scan->pieces, &event, &state, &is_event);
        if (state == CUT || (next == end && !final && *at != '{' && !searched))
            break; /* a number may go on */
        if (state == WHOLE) {
            if (is_event)
                take_event(scan, &event);
            else
                scan->undecodable++;
            at = next;
            continue;
        }
        if (!alone)
            next = behind_damage(searched ? next : at, end, final, &behind);
        if (next == NULL) {
            scan->searched = behind - at;
            scan->outcome = final ? STUCK : MORE;
            break;
        }
        if (!alone && take_mended(scan, at, next, end))
            scan->damaged_args++;
        else
            scan->damaged++;
        at = next;
    }
    return scan->outcome;
}
