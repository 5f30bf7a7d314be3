/* What a scenario file holds, and what the entry points are made of; see fake_amd_smi.c. */
#ifndef FAKE_AMD_SMI_H
#define FAKE_AMD_SMI_H
#include <stddef.h>
#include <stdint.h>

#include "calls.h" /* made by build.py: enum call */

#define MAX_GPUS 17 /* the last stands for the library: calls that concern no GPU */
#define SYSTEM (MAX_GPUS - 1)
#define MAX_ANSWERS 96
#define MAX_MOTIONS 640
#define MOST_PIECES 16
#define HEAP_BYTES 131072
#define MOST_BLOCK_BYTES 8192
#define HANGS (-10)
#define CRASHES (-20)

enum status {
    SUCCESS = 0,
    INVAL = 1,
    NOT_SUPPORTED = 2,
    OUT_OF_RESOURCES = 15,
    INIT_ERROR = 18,
    NOT_FOUND = 31,
    NOT_INIT = 32
};

/* A number of an answer that moves; as `Motion` in motion.py. */
typedef struct {
    int64_t offset, width; /* in the answer, bytes */
    int64_t counts, numerator, denominator, base, bits, origin_ns, repeats, at_read;
    int64_t piece_count, levels[MOST_PIECES], lengths_ns[MOST_PIECES];
} motion_t;

/* What a call answers for one key: bytes of the heap, in which numbers move. */
typedef struct {
    int64_t call, key, offset, bytes;
    int64_t item_bytes;             /* of a list */
    int64_t first_motion, motion_count;
    int64_t motion_room;            /* how many there may be */
    int64_t refresh_ns;             /* it is measured at multiples of this; 0: at each read */
    int64_t held_ns;                /* it was last measured then; 0: it goes on */
    int64_t short_bytes;            /* no more is written; -1: all */
    int64_t torn_at, torn_lag_ns;   /* from this byte on it is older; -1: not torn */
    int64_t torn_offset;            /* where the older bytes lie; -1: the same, but older */
} answer_t;

typedef struct {
    int64_t socket, bdf;
    int64_t code[CALL_COUNT], delay_us[CALL_COUNT], called[CALL_COUNT];
    int64_t sequence; /* odd while a test changes what stands below */
    int64_t answer_count, motion_count, heap_used;
    answer_t answers[MAX_ANSWERS];
    motion_t motions[MAX_MOTIONS];
    char heap[HEAP_BYTES];
} gpu_t;

typedef struct {
    int64_t gpu_count, socket_count;
    int64_t frozen_ns;       /* 0: the clock runs */
    int64_t most_at_once;    /* calls in one process */
    int64_t unanswered;      /* calls of what is not invented here */
    gpu_t gpus[MAX_GPUS];
} scenario_t;

extern scenario_t *scenario;

int fetch(enum call call, void *handle, int64_t key, void *out);
int fetch_text(enum call call, void *handle, char *text, size_t length);
int fetch_list(enum call call, void *handle, uint32_t *count, void *out);
int unanswered(void);

/* values.c: an answer as it is at this instant. */
const answer_t *answer_of(const gpu_t *gpu, enum call call, int64_t key);
void write_answer(const gpu_t *gpu, const answer_t *answer, void *out);
int64_t now_ns(void);
#endif
