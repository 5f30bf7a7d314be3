/* What is open on each thread when, as holders.py and nesting.py work it out: the edges at which it
 * changes, and what the stack of each thing is called by. */
#include "scanner.h"

#include <stdlib.h>

/* `SpanKind` of model/trace.py, and `FRAME_KIND`. */
enum { OP, ANNOTATION, MODULE };

#define ALWAYS_NS (-(INT64_C(1) << 62))
/* Things that end out of order are moved on the stack, on average up to so many for each thing. */
#define MOST_MOVES 64

/* A thing on a stack. Indices of things, -1 none, as in `Stacks` of holders.py. */
typedef struct {
    int64_t until_ns;       /* when the first ends of it and those below it */
    int64_t whole_until_ns; /* when the first ends of it and those that it began in */
    int32_t thing, operator, frame, annotation, outer, module, whole;
    bool backward;
} open_t;

static const open_t NOTHING = {INT64_MAX, INT64_MAX, -1, -1, -1, -1, -1, -1, -1, false};

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int32_t either(int32_t first, int32_t second)
{
    return first >= 0 ? first : second;
}

/* Of several edges at one time the last one stays. */
static void add_edge(stacks_t *stacks, int32_t thread, int64_t at_ns, int32_t inner)
{
    int64_t last = stacks->edges - 1;
    if (at_ns < stacks->from_ns || at_ns >= stacks->to_ns)
        return;
    if (last < 0 || stacks->edge_ns[last] != at_ns || stacks->edge_thread[last] != thread)
        last = stacks->edges++;
    stacks->edge_thread[last] = thread;
    stacks->edge_ns[last] = at_ns;
    stacks->edge_inner[last] = inner;
}

/* Take off the stack what ends up to a moment. Returns the top. */
static open_t *end_until(stacks_t *stacks, open_t *top, int32_t thread, int64_t at_ns)
{
    while (top->until_ns <= at_ns && stacks->moves > 0) {
        int64_t end_ns = top->until_ns;
        open_t *last = top;
        while (top->until_ns == end_ns)
            top--;
        for (open_t *open = top + 1; open <= last; open++) {
            int64_t own_ns = stacks->end_ns[open->thing];
            stacks->moves--;
            if (own_ns == end_ns)
                continue;
            top[1] = *open;
            top[1].until_ns = earlier(own_ns, top->until_ns);
            top++;
        }
        add_edge(stacks, thread, end_ns, top->thing);
    }
    return top;
}

/* Whether a thing launches nothing. On each thread things come in order of their begin. */
static bool is_quiet(stacks_t *stacks, int32_t thing)
{
    int32_t thread = stacks->thread[thing];
    int64_t next = stacks->launch;
    while (next < stacks->launches &&
           (stacks->launch_thread[next] < thread ||
            (stacks->launch_thread[next] == thread && stacks->launch_ns[next] < stacks->start_ns[thing])))
        next++;
    stacks->launch = next;
    return next == stacks->launches || stacks->launch_thread[next] != thread ||
           stacks->launch_ns[next] >= stacks->end_ns[thing];
}

/* Put a thing on the stack. */
static void begin(stacks_t *stacks, const open_t *around, open_t *open, int32_t thing)
{
    bool is_annotation = stacks->kind[thing] == ANNOTATION;
    int64_t end_ns = stacks->end_ns[thing];
    *open = *around;
    open->until_ns = earlier(end_ns, around->until_ns);
    open->whole_until_ns = earlier(end_ns, around->whole_until_ns);
    open->thing = thing;
    if (stacks->kind[thing] == OP)
        open->operator = either(around->operator, thing);
    if (stacks->kind[thing] == MODULE)
        open->module = either(around->module, thing);
    if (stacks->user[thing])
        open->frame = thing;
    if (is_annotation) {
        open->operator = open->frame = -1;
        open->annotation = thing;
        open->outer = either(around->outer, thing);
    }
    if (is_quiet(stacks, thing))
        open->whole = either(around->whole, thing);
    open->backward |= stacks->backward[thing];
}

static int32_t region_of(const stacks_t *stacks, const open_t *open)
{
    int32_t thing = open->outer < 0 && !open->backward ? open->module : open->outer;
    if (thing >= 0)
        return stacks->text[thing];
    return open->backward ? (int32_t)stacks->backward_text : -1;
}

static void tell(stacks_t *stacks, const open_t *open, int64_t row)
{
    stacks->named[row] = either(open->operator, either(open->frame, open->annotation));
    stacks->whole[row] = open->whole;
    stacks->region[row] = region_of(stacks, open);
    stacks->whole_until_ns[row] = open->whole_until_ns;
}

/* Fill in the edges and the columns of stacks. Returns whether: not if too much overlaps, or without
 * memory. */
int64_t stacks_walk(stacks_t *stacks)
{
    int64_t next = 0;
    open_t *bottom = malloc((size_t)(stacks->count + 1) * sizeof(*bottom));
    if (!bottom)
        return 0;
    *bottom = NOTHING;
    tell(stacks, bottom, stacks->count);
    stacks->moves = MOST_MOVES * (stacks->count + 1);
    for (int32_t thread = 0; thread < stacks->threads && stacks->moves > 0; thread++) {
        open_t *top = bottom;
        add_edge(stacks, thread, ALWAYS_NS, -1);
        for (; next < stacks->count; next++) {
            int32_t thing = (int32_t)stacks->order[next];
            if (stacks->thread[thing] != thread)
                break;
            top = end_until(stacks, top, thread, stacks->start_ns[thing]);
            begin(stacks, top, top + 1, thing);
            top++;
            tell(stacks, top, thing);
            add_edge(stacks, thread, stacks->start_ns[thing], thing);
        }
        end_until(stacks, top, thread, stacks->to_ns - 1);
    }
    free(bottom);
    return stacks->moves > 0;
}
