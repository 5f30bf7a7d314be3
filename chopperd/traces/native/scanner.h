/* A scanner of Kineto's events: JSON text in, rows of a trace's tables out.
 *
 * text.h       blanks, digits, strings, many bytes at a time
 * json.c       where a JSON value ends
 * numbers.c    decimals to whole ns, fields of mixed type to integers
 * strings.c    texts numbered in the order in which they come
 * between.h    the text between two values, recognised once it was read
 * keys.c       the keys of an event
 * names.c      texts of an event as numbers, and properties of its name
 * rows.c       the row that an event becomes
 * file.c       a file's text, without Python
 * scan.c       events in sequence, damaged ones skipped
 * stacks.c     what is open on the threads when, of the rows in the end
 *
 * Gives the same rows as the decoder in Python (event_rows.py). Numbers of texts and memory are
 * retained between two scans. Text ends with a NUL, which no JSON value contains.
 */
#ifndef CHOPPERD_SCANNER_H
#define CHOPPERD_SCANNER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memmem */
#endif

#include <stdbool.h>
#include <stdint.h>

#ifndef SCANNER_VERSION
#define SCANNER_VERSION 9
#endif

#define ABSENT (-1)
#define NO_TIME INT64_MIN

/* ---- json.c ---- */

typedef enum { WHOLE, CUT, DAMAGED } state_t;

/* A piece of the text. `kind`: its first byte, 0 where it is absent. */
typedef struct {
    const char *at;
    int64_t size;
    char kind;
} token_t;

/* The end of the value that starts at `at`, and in `state` how it ended: CUT at the end of the text. */
const char *after_number(const char *at, const char *end, state_t *state);
const char *after_string(const char *at, const char *end, state_t *state);
const char *after_value(const char *at, const char *end, state_t *state);
/* The end of a number or word in place of a value of an object or a list. A missing value and an
 * invalid word (nan, None, 0x7f) mean null: `is_null`. */
const char *after_plain(const char *at, const char *end, state_t *state, bool *is_null);

/* ---- numbers.c ---- */

int64_t ns_from_us(const token_t *token);
int64_t integer_from(const token_t *token);
/* The 64 bits of an id, signed or not; ABSENT where it has none, or more, or is no whole number. */
int64_t bits_from(const token_t *token);

/* ---- strings.c ---- */

/* Texts one after another in `bytes`; text i ends at ends[i]. Slots hold numbers plus one. */
typedef struct {
    char *bytes;
    int64_t *ends;
    uint64_t *hashes;
    uint8_t *marks;
    uint32_t *slots;
    int64_t used, room;
    int64_t count, count_room;
    int64_t slot_room;
} strings_t;

/* The number of a text; -1 where there is no memory. `is_new` where it has not come before. */
int32_t number_of(strings_t *strings, const char *text, int64_t size, bool *is_new);
void free_strings(strings_t *strings);

/* ---- between.c ---- */

typedef struct pieces pieces_t;

pieces_t *pieces_open(void);
void pieces_close(pieces_t *pieces);

/* ---- keys.c ---- */

typedef enum { PH, CAT, NAME, PID, TID, TS, DUR, ID, ARGS, EVENT_KEYS } event_key_t;

/* Those of a collective, of shapes, and of a mark are adjacent, which rows.c needs. */
typedef enum {
    DEVICE, STREAM, CORRELATION, EXTERNAL_ID, EXTERNAL_ID_OF_2021, SEQUENCE, FORWARD_THREAD, BYTES,
    SIZE, HSA_QUEUE, SEQ, COMMS_ID, COLLECTIVE, DTYPE, IN_ELEMENTS, OUT_ELEMENTS, GROUP,
    GROUP_DESCRIPTION, GROUP_SIZE, RANKS, DIMS, TYPES, VALUES, MARK_MODULE, MARK_NAME, MARK_PHASE,
    DEVICE_TYPE, DEVICE_ID, ALLOCATED_BYTES, ADDRESS, TOTAL_ALLOCATED, TOTAL_RESERVED, ARG_KEYS
} arg_key_t;

/* Of an absent key only `kind` is set. Bits of `keys_found` and `args_found`: those that are there.
 * `stop`: NULL, or the arguments before which reading stops. All zero before the first event. */
typedef struct {
    token_t keys[EVENT_KEYS];
    token_t args[ARG_KEYS];
    uint32_t keys_found, args_found;
    const char *stop;
} event_t;

/* A text without quotes and escapes of ASCII characters: its length, or -1 if it is longer than
 * `room`. */
int64_t plain_text(char *to, int64_t room, const token_t *token);
/* The end of the object at `at`; WHOLE if all of it is JSON. `pieces`: NULL to know none. */
const char *read_keys(
    const char *at, const char *end, pieces_t *pieces, event_t *event, state_t *state);
/* Reduces an event at `at`, which was read and is damaged in its arguments, to the arguments that are
 * valid before `behind`; false if that is impossible. */
bool mend_args(const char *at, const char *end, const char *behind, event_t *event);
char phase_of(const event_t *event);
bool is_scalar(const token_t *token);

/* ---- rows.c ---- */

typedef struct {
    int64_t start_ns, end_ns, stream, correlation, external_id, copied_bytes, seq, comms_id;
    int32_t device, name, collective, kind, place, mark;
} record_row_t;

typedef struct {
    int64_t start_ns, end_ns, correlation, external_id, size_bytes;
    int32_t thread, name;
} call_row_t;

typedef struct {
    int64_t start_ns, end_ns, external_id, sequence, forward_thread;
    int32_t thread, name, kind, shapes, collective, unused;
} span_row_t;

typedef struct {
    int64_t start_ns, end_ns, stream;
    int32_t device, name;
} device_span_row_t;

typedef struct {
    int64_t flow, t_ns;
    int32_t thread, is_end;
} flow_row_t;

/* A Python function that is no module's. */
typedef struct {
    int64_t start_ns, end_ns;
    int32_t thread, function;
} frame_row_t;

/* What an operator says of the collective that it starts. */
typedef struct {
    int64_t external_id, seq, comms_id;
} comms_row_t;

/* A change of a device's memory, or a request that failed. */
typedef struct {
    int64_t at_ns, bytes, address, allocated_bytes, reserved_bytes;
    int32_t thread, device, is_oom, unused;
} memory_row_t;

/* Rows of one size, in file order. */
typedef struct {
    char *rows;
    int64_t count, room, row_bytes;
} table_t;

enum { RECORDS, CALLS, SPANS, DEVICE_SPANS, FLOWS, FRAMES, COMMS, MEMORY, TABLES };
enum { NAMES, THREADS, COLLECTIVES, SHAPES, PLACES, MARKS, FUNCTIONS, CATEGORIES, TEXTS };

/* What scans gave since it was emptied, and where the last one stopped. Python reads it by its layout: library.py. */
typedef struct {
    table_t tables[TABLES];
    strings_t texts[TEXTS];
    int64_t *category_counts;
    int64_t category_room;
    int64_t consumed;
    int64_t searched;
    int64_t outcome;
    int64_t damaged, damaged_args, undecodable, undecodable_rows, invalid_records, has_queues;
    int64_t out_of_memory;
    char *joined;
    int64_t joined_room;
    const char *shaped;
    pieces_t *pieces;
    char *text;
} scan_t;

/* Count an event and take its row, where it makes one. */
void take_event(scan_t *scan, const event_t *event);

/* ---- names.c: numbers are -1, and `out_of_memory` is set, where there is no memory ---- */

int32_t text_number(scan_t *scan, int which, const char *text, int64_t size, bool *is_new);

/* The number of some values together; those that are no scalars are as if absent. */
int32_t joined_number(
    scan_t *scan, int which, const token_t *tokens, int count, bool any_kind);
/* The number of an event's name among the texts `which`. */
int32_t name_number(scan_t *scan, int which, const event_t *event);
int32_t thread_number(scan_t *scan, const event_t *event);

/* Whether shapes are stored of operators of a name, which has a number. */
bool keeps_shapes(scan_t *scan, const token_t *name, int32_t number);

/* Whether a name is that of a call of a module, in which a writer may have escaped letters. */
bool is_module(const token_t *name);

/* ---- scan.c: what Python calls ---- */

/* Ways in which a scan ends: at its limit or where the text runs out; behind the array's bracket;
 * at a damaged element that no event follows to the end of the file. */
enum { MORE, ENDED, STUCK };

int64_t scanner_version(void);
int64_t scan_bytes(void);
int64_t scan_row_bytes(int64_t table);
scan_t *scan_open(const char *shaped);
void scan_close(scan_t *scan);
void scan_empty(scan_t *scan);
int64_t scan_events(
    scan_t *scan, const char *text, int64_t size, int64_t limit, int64_t final, int64_t searched);
int64_t scan_file(scan_t *scan, int32_t file, int64_t offset, int64_t most);

/* ---- stacks.c ---- */

/* Things, and what is found of them, as in host_stacks.py; `moves`: how many are left. */
typedef struct {
    int64_t count, threads, from_ns, to_ns, backward_text, launches, launch, moves, edges;
    const int64_t *order; /* the things by thread, outer ones first */
    const int32_t *thread;
    const int64_t *start_ns, *end_ns;
    const int8_t *kind;
    const int32_t *text;
    const bool *user, *backward;
    const int32_t *launch_thread;
    const int64_t *launch_ns; /* by thread and time */
    int32_t *edge_thread;
    int64_t *edge_ns;
    int32_t *edge_inner, *named, *whole, *region;
    int64_t *whole_until_ns;
} stacks_t;

int64_t stacks_walk(stacks_t *stacks);

#endif
