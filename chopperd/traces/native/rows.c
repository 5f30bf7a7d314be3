/* The row that an event becomes, as rows.py makes it; what becomes none is only counted. */
#include "scanner.h"

#include <stdlib.h>
#include <string.h>

typedef enum {
    COUNTED, KERNEL, MEMCPY, MEMSET, CALL, OPERATOR, ANNOTATION, PYTHON, DEVICE_SPAN, FLOW, INSTANT
} category_t;

/* `SpanKind` of model/trace.py. */
enum { OP_SPAN, ANNOTATION_SPAN, MODULE_SPAN };

/* Categories that become rows. Those with a capital are of 2021; HIP calls are cuda_runtime too. */
static const struct {
    const char *text;
    category_t category;
} ROW_CATEGORIES[] = {
    {"kernel", KERNEL},
    {"Kernel", KERNEL},
    {"gpu_memcpy", MEMCPY},
    {"Memcpy", MEMCPY},
    {"gpu_memset", MEMSET},
    {"Memset", MEMSET},
    {"cuda_runtime", CALL},
    {"cuda_driver", CALL},
    {"xpu_runtime", CALL},
    {"xpu_driver", CALL},
    {"mtia_runtime", CALL},
    {"privateuse1_runtime", CALL},
    {"privateuse1_driver", CALL},
    {"musa_runtime", CALL},
    {"musa_driver", CALL},
    {"Runtime", CALL},
    {"cpu_op", OPERATOR},
    {"Operator", OPERATOR},
    {"user_annotation", ANNOTATION},
    {"python_function", PYTHON},
    {"gpu_user_annotation", DEVICE_SPAN},
    {"fwdbwd", FLOW},
    {"cpu_instant_event", INSTANT},
    {"", INSTANT}, /* 2021 */
};

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

/* The number of what the program wrote on a kernel of a captured graph. */
static int32_t mark_number(scan_t *scan, const event_t *event)
{
    const token_t *mark = &event->args[MARK_MODULE];
    if (!is_scalar(mark) && !is_scalar(mark + 1) && !is_scalar(mark + 2))
        return ABSENT;
    return joined_number(scan, MARKS, mark, MARK_PHASE - MARK_MODULE + 1, false);
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

/* The number of a record's process where that is not its device's number, as in files put together. */
static int32_t place_number(scan_t *scan, const event_t *event, int32_t device)
{
    const token_t *process = &event->keys[PID];
    if (!is_scalar(&event->args[DEVICE]) || !is_scalar(process) || integer_from(process) == device)
        return ABSENT;
    return joined_number(scan, PLACES, process, 1, false);
}

static void take_record(scan_t *scan, const event_t *event, category_t category)
{
    int64_t start_ns = ns_from_us(&event->keys[TS]), dur_ns = ns_from_us(&event->keys[DUR]);
    int32_t device = device_of(event), name = name_number(scan, NAMES, event);
    int32_t collective = collective_number(scan, event), mark = mark_number(scan, event);
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
    row->seq = natural(&event->args[SEQ]);
    row->comms_id = bits_from(&event->args[COMMS_ID]);
    row->name = name;
    row->collective = collective;
    row->kind = (int32_t)category - KERNEL;
    row->place = place_number(scan, event, device);
    row->mark = mark;
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
    int32_t name = name_number(scan, NAMES, event), thread = thread_number(scan, event);
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

/* What an operator says of its collective, for a record that does not say it itself. */
static void take_comms(scan_t *scan, const event_t *event)
{
    const token_t *args = event->args;
    comms_row_t found = {external_id(event), natural(&args[SEQ]), bits_from(&args[COMMS_ID])};
    comms_row_t *row;
    if (found.external_id == ABSENT || (found.seq == ABSENT && found.comms_id == ABSENT))
        return;
    if ((row = next_row(scan, COMMS)) != NULL)
        *row = found;
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
    if (kind == OP_SPAN && (args[SEQ].kind || args[COMMS_ID].kind))
        take_comms(scan, event);
}

static void take_frame(scan_t *scan, const event_t *event)
{
    int32_t function = name_number(scan, FUNCTIONS, event), thread = thread_number(scan, event);
    int64_t start_ns, end_ns;
    frame_row_t *row;
    if (!host_times(scan, event, &start_ns, &end_ns) || (row = next_row(scan, FRAMES)) == NULL)
        return;
    row->start_ns = start_ns;
    row->end_ns = end_ns;
    row->thread = thread;
    row->function = function;
}

static void take_device_span(scan_t *scan, const event_t *event)
{
    int32_t device = device_of(event), name = name_number(scan, NAMES, event);
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

/* A row of a device's memory; those of the host's, of device type 0, are only counted. */
static void take_memory(scan_t *scan, const event_t *event)
{
    static const char memory[] = "[memory]", oom[] = "[OutOfMemory]";
    const token_t *args = event->args, *name = &event->keys[NAME];
    char plain[sizeof(oom)];
    int64_t size = name->kind == '"' ? plain_text(plain, sizeof(plain), name) : 0;
    bool is_oom = size == sizeof(oom) - 1 && memcmp(plain, oom, sizeof(oom) - 1) == 0;
    if (!is_oom && !(size == sizeof(memory) - 1 && memcmp(plain, memory, sizeof(memory) - 1) == 0))
        return;
    const token_t *size_given = &args[ALLOCATED_BYTES];
    int64_t at_ns = ns_from_us(&event->keys[TS]);
    int64_t bytes = is_scalar(size_given) ? integer_from(size_given) : ABSENT;
    int64_t type = natural(&args[DEVICE_TYPE]), device = natural(&args[DEVICE_ID]);
    memory_row_t *row;
    if (type == 0)
        return;
    if (at_ns == NO_TIME || type < 0 || device < 0 || device > INT32_MAX ||
        (bytes == ABSENT && !is_oom)) {
        scan->undecodable_rows++;
        return;
    }
    int32_t thread = thread_number(scan, event);
    if ((row = next_row(scan, MEMORY)) == NULL)
        return;
    row->at_ns = at_ns;
    row->bytes = bytes;
    row->address = natural(&args[ADDRESS]);
    row->allocated_bytes = natural(&args[TOTAL_ALLOCATED]);
    row->reserved_bytes = natural(&args[TOTAL_RESERVED]);
    row->thread = thread;
    row->device = (int32_t)device;
    row->is_oom = is_oom;
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
        name = name_number(scan, NAMES, event);
        take_span(scan, event, name, category == OPERATOR ? OP_SPAN : ANNOTATION_SPAN);
        break;
    case PYTHON:
        if (is_module(&event->keys[NAME]))
            take_span(scan, event, name_number(scan, NAMES, event), MODULE_SPAN);
        else
            take_frame(scan, event);
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
    for (size_t i = 0; i < sizeof(ROW_CATEGORIES) / sizeof(*ROW_CATEGORIES); i++)
        if ((int64_t)strlen(ROW_CATEGORIES[i].text) == size && memcmp(ROW_CATEGORIES[i].text, plain, (size_t)size) == 0)
            return ROW_CATEGORIES[i].category;
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
    else if (category == INSTANT && phase == 'i')
        take_memory(scan, event);
}
