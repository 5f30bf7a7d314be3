/* The row that an event becomes, as rows.py makes it; what becomes none is only counted. */
#include "scanner.h"

#include <stdlib.h>
#include <string.h>

typedef enum {
    COUNTED, KERNEL, MEMCPY, MEMSET, CALL, OPERATOR, ANNOTATION, PYTHON, DEVICE_SPAN, FLOW
} category_t;

/* Marks of names, worked out where they are asked for; those of categories are `category_t`. */
enum { NOT_SHAPED = 1, SHAPED };
/* `SpanKind` of model/trace.py. */
enum { OP_SPAN, ANNOTATION_SPAN, MODULE_SPAN };

/* Categories that are kept. Those with a capital are of 2021; HIP calls are cuda_runtime too. */
static const struct {
    const char *text;
    category_t category;
} KEPT[] = {
    {"kernel", KERNEL},
    {"Kernel", KERNEL},
    {"gpu_memcpy", MEMCPY},
    {"Memcpy", MEMCPY},
    {"gpu_memset", MEMSET},
    {"Memset", MEMSET},
    {"cuda_runtime", CALL},
    {"cuda_driver", CALL},
    {"Runtime", CALL},
    {"cpu_op", OPERATOR},
    {"Operator", OPERATOR},
    {"user_annotation", ANNOTATION},
    {"python_function", PYTHON},
    {"gpu_user_annotation", DEVICE_SPAN},
    {"fwdbwd", FLOW},
};

static const char SEPARATOR = '\x1f'; /* stands in no JSON text */

static void *next_row(scan_t *scan, int which)
{
    table_t *table = &scan->tables[which];
    if (table->count == table->room) {
        int64_t room = 2 * table->room + 256;
        char *rows = realloc(table->rows, (size_t)(room * table->row_bytes));
        if (rows == NULL) {
            scan->out_of_memory = 1;
            return NULL;
        }
        table->rows = rows;
        table->room = room;
    }
    char *row = table->rows + table->row_bytes * table->count++;
    return memset(row, 0, (size_t)table->row_bytes);
}

static int32_t text_number(scan_t *scan, int which, const char *text, int64_t size, bool *is_new)
{
    int32_t number = number_of(&scan->texts[which], text, size, is_new);
    if (number < 0)
        scan->out_of_memory = 1;
    return number;
}

/* Whether a text of a size can be put together. */
static bool has_room(scan_t *scan, int64_t size)
{
    if (size > scan->joined_room) {
        char *joined = realloc(scan->joined, (size_t)(2 * size));
        if (joined == NULL) {
            scan->out_of_memory = 1;
            return false;
        }
        scan->joined = joined;
        scan->joined_room = 2 * size;
    }
    return true;
}

/* The number of some values together; those that are no scalars are as if absent. */
static int32_t joined_number(
    scan_t *scan, int which, const token_t *tokens, int count, bool any_kind)
{
    int64_t size = 0;
    bool is_new;
    for (int i = 0; i < count; i++)
        size += (tokens[i].kind ? tokens[i].size : 0) + 1;
    if (!has_room(scan, size))
        return ABSENT;
    size = 0;
    for (int i = 0; i < count; i++) {
        if (i)
            scan->joined[size++] = SEPARATOR;
        if (tokens[i].kind && (any_kind || is_scalar(&tokens[i]))) {
            memcpy(scan->joined + size, tokens[i].at, (size_t)tokens[i].size);
            size += tokens[i].size;
        }
    }
    return text_number(scan, which, scan->joined, size, &is_new);
}

/* Whether a text holds one of some words of two letters or more. */
static bool holds_any(const char *text, int64_t size, const char *words)
{
    bool first[256] = {false}, second[256] = {false};
    const char *end = text + size;
    for (const char *word = words; *word; word += strlen(word) + 1) {
        first[(unsigned char)word[0]] = true;
        second[(unsigned char)word[1]] = true;
    }
    for (const char *at = text; end - at > 1; at++) {
        if (!first[(unsigned char)at[0]] || !second[(unsigned char)at[1]])
            continue;
        for (const char *word = words; *word; word += strlen(word) + 1)
            if (end - at >= (int64_t)strlen(word) && memcmp(at, word, strlen(word)) == 0)
                return true;
    }
    return false;
}

/* Whether shapes are kept of operators of a name. */
static bool is_shaped(scan_t *scan, const char *text, int64_t size)
{
    if (memchr(text, '\\', (size_t)size)) {
        token_t name = {text, size, '"'};
        if (!has_room(scan, size))
            return false;
        size = plain_text(scan->joined, size, &name);
        text = scan->joined;
    }
    return holds_any(text, size, scan->shaped);
}

/* As `is_shaped`, of an operator's name and its number; looked at once. */
static bool keeps_shapes(scan_t *scan, const token_t *name, int32_t number)
{
    uint8_t *mark = &scan->texts[NAMES].marks[number];
    if (!*mark)
        *mark = name->kind && is_shaped(scan, name->at, name->size) ? SHAPED : NOT_SHAPED;
    return *mark == SHAPED;
}

/* Whether a name is that of a call of a module, in which a writer may have escaped letters. */
static bool is_module(const token_t *name)
{
    static const char prefix[] = "nn.Module: ";
    enum { LETTERS = sizeof(prefix) - 1, ESCAPED = 6 * LETTERS + 1 };
    char plain[LETTERS] = {0};
    if (name->kind != '"' || name->size < LETTERS + 2)
        return false;
    if (memcmp(name->at + 1, prefix, LETTERS) == 0)
        return true;
    if (!memchr(name->at, '\\', (size_t)(name->size < ESCAPED ? name->size : ESCAPED)))
        return false;
    plain_text(plain, LETTERS, name);
    return memcmp(plain, prefix, LETTERS) == 0;
}

static int32_t name_number(scan_t *scan, const event_t *event)
{
    static const char no_name[] = "\"\"";
    const token_t *name = &event->keys[NAME];
    bool is_new, has_name = name->kind != 0;
    const char *text = has_name ? name->at : no_name;
    int64_t size = has_name ? name->size : (int64_t)sizeof(no_name) - 1;
    return text_number(scan, NAMES, text, size, &is_new);
}

static int32_t thread_number(scan_t *scan, const event_t *event)
{
    return joined_number(scan, THREADS, &event->keys[PID], 2, false);
}

static int64_t positive(const token_t *token)
{
    int64_t number = is_scalar(token) ? integer_from(token) : ABSENT;
    return number > 0 ? number : ABSENT;
}

static int64_t natural(const token_t *token)
{
    int64_t number = is_scalar(token) ? integer_from(token) : ABSENT;
    return number >= 0 ? number : ABSENT;
}

static int64_t external_id(const event_t *event)
{
    const token_t *args = event->args;
    return positive(&args[is_scalar(&args[EXTERNAL_ID]) ? EXTERNAL_ID : EXTERNAL_ID_OF_2021]);
}

static int32_t collective_number(scan_t *scan, const event_t *event)
{
    if (!is_scalar(&event->args[COLLECTIVE]))
        return ABSENT;
    return joined_number(scan, COLLECTIVES, &event->args[COLLECTIVE], RANKS - COLLECTIVE + 1, false);
}

/* What a device row says itself, else its process and thread, which mean the same. */
static int64_t place_of(const event_t *event, arg_key_t arg, event_key_t key)
{
    const token_t *own = &event->args[arg];
    return integer_from(is_scalar(own) ? own : &event->keys[key]);
}

static int32_t device_of(const event_t *event)
{
    int64_t device = place_of(event, DEVICE, PID);
    return device < 0 || device > INT32_MAX ? ABSENT : (int32_t)device;
}

static void take_record(scan_t *scan, const event_t *event, category_t category)
{
    int64_t start_ns = ns_from_us(&event->keys[TS]), dur_ns = ns_from_us(&event->keys[DUR]);
    int32_t device = device_of(event), name = name_number(scan, event);
    int32_t collective = collective_number(scan, event);
    record_row_t *row;
    scan->has_queues |= is_scalar(&event->args[HSA_QUEUE]);
    if (device == ABSENT || start_ns == NO_TIME) {
        scan->undecodable_rows++;
        return;
    }
    if (dur_ns < 0) {
        scan->invalid_records++;
        return;
    }
    if ((row = next_row(scan, RECORDS)) == NULL)
        return;
    row->start_ns = start_ns;
    row->end_ns = start_ns + dur_ns;
    row->device = device;
    row->stream = place_of(event, STREAM, TID);
    row->correlation = positive(&event->args[CORRELATION]);
    row->external_id = external_id(event);
    row->copied_bytes = category == KERNEL ? ABSENT : positive(&event->args[BYTES]);
    row->name = name;
    row->collective = collective;
    row->kind = (int32_t)category - KERNEL;
}

/* The times of a host row; false, and counted, where one is missing. */
static bool host_times(scan_t *scan, const event_t *event, int64_t *start_ns, int64_t *end_ns)
{
    int64_t dur_ns = ns_from_us(&event->keys[DUR]);
    *start_ns = ns_from_us(&event->keys[TS]);
    if (*start_ns == NO_TIME || dur_ns < 0) {
        scan->undecodable_rows++;
        return false;
    }
    *end_ns = *start_ns + dur_ns;
    return true;
}

static void take_call(scan_t *scan, const event_t *event)
{
    const token_t *args = event->args;
    int32_t name = name_number(scan, event), thread = thread_number(scan, event);
    int64_t start_ns, end_ns;
    call_row_t *row;
    if (!host_times(scan, event, &start_ns, &end_ns) || (row = next_row(scan, CALLS)) == NULL)
        return;
    row->start_ns = start_ns;
    row->end_ns = end_ns;
    row->correlation = positive(&args[CORRELATION]);
    row->external_id = external_id(event);
    row->size_bytes = positive(&args[is_scalar(&args[BYTES]) ? BYTES : SIZE]);
    row->thread = thread;
    row->name = name;
}

static void take_span(scan_t *scan, const event_t *event, int32_t name, int32_t kind)
{
    const token_t *args = event->args;
    int32_t thread = thread_number(scan, event), shapes = ABSENT;
    int32_t collective = collective_number(scan, event);
    int64_t start_ns, end_ns;
    span_row_t *row;
    if (kind == OP_SPAN && args[DIMS].kind && name >= 0 && keeps_shapes(scan, &event->keys[NAME], name))
        shapes = joined_number(scan, SHAPES, &args[DIMS], VALUES - DIMS + 1, true);
    if (!host_times(scan, event, &start_ns, &end_ns) || (row = next_row(scan, SPANS)) == NULL)
        return;
    row->start_ns = start_ns;
    row->end_ns = end_ns;
    row->external_id = external_id(event);
    row->sequence = natural(&args[SEQUENCE]);
    row->forward_thread = natural(&args[FORWARD_THREAD]);
    row->thread = thread;
    row->name = name;
    row->kind = kind;
    row->shapes = shapes;
    row->collective = collective;
}

static void take_device_span(scan_t *scan, const event_t *event)
{
    int32_t device = device_of(event), name = name_number(scan, event);
    int64_t start_ns, end_ns;
    device_span_row_t *row;
    if (device == ABSENT) {
        scan->undecodable_rows++;
        return;
    }
    if (!host_times(scan, event, &start_ns, &end_ns) || !(row = next_row(scan, DEVICE_SPANS)))
        return;
    row->start_ns = start_ns;
    row->end_ns = end_ns;
    row->stream = place_of(event, STREAM, TID);
    row->device = device;
    row->name = name;
}

static void take_flow(scan_t *scan, const event_t *event, char ph)
{
    int64_t t_ns = ns_from_us(&event->keys[TS]);
    int32_t thread = thread_number(scan, event);
    flow_row_t *row;
    if (t_ns == NO_TIME) {
        scan->undecodable_rows++;
        return;
    }
    if ((row = next_row(scan, FLOWS)) == NULL)
        return;
    row->flow = natural(&event->keys[ID]);
    row->t_ns = t_ns;
    row->thread = thread;
    row->is_end = ph == 'f';
}

static void take_complete(scan_t *scan, const event_t *event, category_t category)
{
    int32_t name;
    switch (category) {
    case KERNEL:
    case MEMCPY:
    case MEMSET:
        take_record(scan, event, category);
        break;
    case CALL:
        take_call(scan, event);
        break;
    case OPERATOR:
    case ANNOTATION:
        name = name_number(scan, event);
        take_span(scan, event, name, category == OPERATOR ? OP_SPAN : ANNOTATION_SPAN);
        break;
    case PYTHON:
        /* All other Python functions are left out, and most of them are no news to anyone. */
        if (is_module(&event->keys[NAME]))
            take_span(scan, event, name_number(scan, event), MODULE_SPAN);
        break;
    case DEVICE_SPAN:
        take_device_span(scan, event);
        break;
    default:
        break;
    }
}

static category_t category_of(const token_t *text)
{
    char plain[32];
    int64_t size = plain_text(plain, sizeof(plain), text);
    for (size_t i = 0; i < sizeof(KEPT) / sizeof(*KEPT); i++)
        if ((int64_t)strlen(KEPT[i].text) == size && memcmp(KEPT[i].text, plain, (size_t)size) == 0)
            return KEPT[i].category;
    return COUNTED;
}

/* The category of an event, and one more of it; those of no text are of "". */
static category_t count_category(scan_t *scan, const event_t *event)
{
    static const char none[] = "\"\"";
    const token_t *cat = &event->keys[CAT];
    bool is_new, is_text = cat->kind == '"';
    const char *text = is_text ? cat->at : none;
    int64_t size = is_text ? cat->size : (int64_t)sizeof(none) - 1;
    strings_t *categories = &scan->texts[CATEGORIES];
    int32_t number = text_number(scan, CATEGORIES, text, size, &is_new);
    if (number < 0)
        return COUNTED;
    if (is_new) {
        token_t key = {text, size, '"'};
        if (number >= scan->category_room) {
            int64_t room = 2 * (int64_t)number + 32;
            int64_t *counts = realloc(scan->category_counts, (size_t)room * sizeof(*counts));
            if (counts == NULL) {
                scan->out_of_memory = 1;
                return COUNTED;
            }
            scan->category_counts = counts;
            scan->category_room = room;
        }
        scan->category_counts[number] = 0;
        categories->marks[number] = (uint8_t)category_of(&key);
    }
    scan->category_counts[number]++;
    return (category_t)categories->marks[number];
}

void take_event(scan_t *scan, const event_t *event)
{
    char phase = phase_of(event);
    category_t category = count_category(scan, event);
    if (phase == 'X')
        take_complete(scan, event, category);
    else if (category == FLOW && (phase == 's' || phase == 'f'))
        take_flow(scan, event, phase);
}
