/* A libamd_smi.so with invented GPUs, for tests; loaded by the real Python binding.
 *
 * What it answers is in a file of the layout of fake_amd_smi.h, named by FAKE_AMDSMI_SCENARIO and
 * mapped shared, so that a test in this process or another changes it while it is in use
 * (scenario.py has the same layout). The answers lie there as bytes, made from the structures of a
 * binding: this code knows none of them, and serves every size that they had.
 */
#define _GNU_SOURCE
#include "fake_amd_smi.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SOCKETS_FROM 0x50000000L
#define PROCESSORS_FROM 0x60000000L
#define BY_GENERATION 0x1000L
#define GENERATIONS 0x100L
#define PROCESSOR_TYPE_GPU 1

scenario_t *scenario;
static int open_count, generation;
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t inside;

/* ---- what tests check ------------------------------------------------------------------- */

size_t fake_amdsmi_layout_bytes(void) { return sizeof(scenario_t); }
int fake_amdsmi_open_count(void) { return open_count; }

/* ---- handles: of an initialisation, invalid after the next ------------------------------- */

static void *handle_of(long from, int64_t index)
{
    return (void *)(from + generation % GENERATIONS * BY_GENERATION + index + 1);
}

static int64_t index_of(long from, const void *handle, int64_t count)
{
    int64_t index = (long)handle - (from + generation % GENERATIONS * BY_GENERATION) - 1;
    return index >= 0 && index < count ? index : -1;
}

/* ---- entering and leaving a call -------------------------------------------------------- */

static void rest_us(int64_t us)
{
    struct timespec rest = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    if (us > 0)
        nanosleep(&rest, NULL);
}

/* As long as the scenario says, which may say otherwise meanwhile. */
static void linger(const gpu_t *gpu, enum call call)
{
    for (int64_t waited = 0; waited < gpu->delay_us[call];) {
        int64_t left = gpu->delay_us[call] - waited;
        int64_t step = left < 1000 ? left : 1000;
        rest_us(step);
        waited += step;
    }
}

static int obeyed(const int64_t *code)
{
    int64_t wanted;
    while ((wanted = __atomic_load_n(code, __ATOMIC_RELAXED)) == HANGS)
        rest_us(2000);
    if (wanted == CRASHES)
        raise(SIGSEGV);
    return (int)wanted;
}

static void count_entry(void)
{
    int64_t now = __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    int64_t most = __atomic_load_n(&scenario->most_at_once, __ATOMIC_RELAXED);
    while (now > most
           && !__atomic_compare_exchange_n(&scenario->most_at_once, &most, now, 0,
                                           __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
}

static void leave(void) { __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST); }

/* The GPU that a handle is of, NULL if none. */
static gpu_t *gpu_of(void *handle)
{
    int64_t index = index_of(PROCESSORS_FROM, handle, scenario->gpu_count);
    return index < 0 ? NULL : &scenario->gpus[index];
}

/* Counts and waits; what the call is to answer. To be left if it is SUCCESS or not. */
static int enter(gpu_t *gpu, enum call call)
{
    count_entry();
    __atomic_fetch_add(&gpu->called[call], 1, __ATOMIC_RELAXED);
    linger(gpu, call);
    return obeyed(&gpu->code[call]);
}

static int enter_system(enum call call)
{
    if (!open_count)
        return NOT_INIT;
    int result = enter(&scenario->gpus[SYSTEM], call);
    leave();
    return result;
}

int unanswered(void)
{
    if (scenario)
        __atomic_fetch_add(&scenario->unanswered, 1, __ATOMIC_RELAXED);
    return NOT_SUPPORTED;
}

/* ---- calls that fetch an answer --------------------------------------------------------- */

typedef int (*give_t)(const gpu_t *gpu, const answer_t *answer, void *out, size_t *room);

static int ask(enum call call, void *handle, int64_t key, give_t give, void *out, size_t *room)
{
    if (!open_count)
        return NOT_INIT;
    gpu_t *gpu = gpu_of(handle);
    if (!gpu || !out)
        return INVAL;
    int result = enter(gpu, call);
    const answer_t *answer = answer_of(gpu, call, key);
    if (result == SUCCESS && !answer)
        result = NOT_SUPPORTED;
    if (result == SUCCESS)
        result = give(gpu, answer, out, room);
    leave();
    return result;
}

static int give_block(const gpu_t *gpu, const answer_t *answer, void *out, size_t *room)
{
    (void)room;
    write_answer(gpu, answer, out);
    return SUCCESS;
}

int fetch(enum call call, void *handle, int64_t key, void *out)
{
    return ask(call, handle, key, give_block, out, NULL);
}

static int give_text(const gpu_t *gpu, const answer_t *answer, void *out, size_t *room)
{
    snprintf(out, *room, "%s", gpu->heap + answer->offset);
    return SUCCESS;
}

int fetch_text(enum call call, void *handle, char *text, size_t length)
{
    return ask(call, handle, 0, give_text, text, &length);
}

/* As many as there is room for; the number asked for is then that of all. */
static int give_list(const gpu_t *gpu, const answer_t *answer, void *out, size_t *room)
{
    size_t all = (size_t)(answer->bytes / answer->item_bytes), asked = *room;
    *room = all;
    if (asked == 0)
        return SUCCESS;
    size_t given = asked < all ? asked : all;
    memcpy(out, gpu->heap + answer->offset, given * (size_t)answer->item_bytes);
    return asked < all ? OUT_OF_RESOURCES : SUCCESS;
}

int fetch_list(enum call call, void *handle, uint32_t *count, void *out)
{
    size_t room = *count;
    char nowhere;
    int result = ask(call, handle, 0, give_list, out ? out : &nowhere, &room);
    if (result == SUCCESS || result == OUT_OF_RESOURCES)
        *count = (uint32_t)room;
    return result;
}

int amdsmi_get_energy_count(void *handle, uint64_t *count, float *resolution, uint64_t *stamp)
{
    struct {
        uint64_t count;
        float resolution, padding;
        uint64_t stamp;
    } energy;
    int result = fetch(CALL_amdsmi_get_energy_count, handle, 0, &energy);
    if (result == SUCCESS) {
        *count = energy.count;
        *resolution = energy.resolution;
        *stamp = energy.stamp;
    }
    return result;
}

/* ---- the library as a whole ------------------------------------------------------------- */

static int map_scenario(void)
{
    struct stat about;
    const char *path = getenv("FAKE_AMDSMI_SCENARIO");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return INIT_ERROR;
    if (fstat(file, &about) || (size_t)about.st_size != sizeof(scenario_t)) {
        close(file);
        return INIT_ERROR;
    }
    /* An older map is left alone: a hanging call may still use it. */
    void *mapped = mmap(NULL, sizeof(scenario_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        return INIT_ERROR;
    scenario = mapped;
    return SUCCESS;
}

int amdsmi_init(uint64_t flags)
{
    (void)flags;
    pthread_mutex_lock(&open_lock);
    int result = open_count ? SUCCESS : map_scenario();
    if (result == SUCCESS) {
        result = enter(&scenario->gpus[SYSTEM], CALL_amdsmi_init);
        leave();
    }
    if (result == SUCCESS && open_count++ == 0)
        generation++;
    pthread_mutex_unlock(&open_lock);
    return result;
}

int amdsmi_shut_down(void)
{
    pthread_mutex_lock(&open_lock);
    int result = enter_system(CALL_amdsmi_shut_down);
    if (open_count)
        open_count--;
    pthread_mutex_unlock(&open_lock);
    return result;
}

/* Where the structure of a version has the text of the build, in all that there were. */
#define BUILD_AT 16

/* Before initialisation too, as with the real one. */
int amdsmi_get_lib_version(void *version)
{
    if (!scenario && map_scenario() != SUCCESS)
        return INIT_ERROR;
    gpu_t *system = &scenario->gpus[SYSTEM];
    int result = enter(system, CALL_amdsmi_get_lib_version);
    if (result == SUCCESS) {
        static const char *const build = "fake";
        write_answer(system, answer_of(system, CALL_amdsmi_get_lib_version, 0), version);
        memcpy((char *)version + BUILD_AT, &build, sizeof(build));
    }
    leave();
    return result;
}

int amdsmi_status_code_to_string(uint32_t status, const char **text)
{
    *text = status == SUCCESS ? "Success" : "An error of the fake library";
    return SUCCESS;
}

/* ---- sockets and processors ------------------------------------------------------------- */

/* Those GPUs of a socket that there is room for; how many there are. */
static uint32_t list_processors(int64_t socket, uint32_t room, void **handles)
{
    uint32_t found = 0;
    for (int64_t i = 0; i < scenario->gpu_count; i++) {
        if (scenario->gpus[i].socket != socket)
            continue;
        if (handles && found < room)
            handles[found] = handle_of(PROCESSORS_FROM, i);
        found++;
    }
    return found;
}

int amdsmi_get_socket_handles(uint32_t *count, void **sockets)
{
    int result = enter_system(CALL_amdsmi_get_socket_handles);
    if (result != SUCCESS)
        return result;
    for (uint32_t i = 0; sockets && i < *count && i < scenario->socket_count; i++)
        sockets[i] = handle_of(SOCKETS_FROM, i);
    *count = (uint32_t)scenario->socket_count;
    return SUCCESS;
}

int amdsmi_get_socket_info(void *socket, size_t length, char *name)
{
    int result = enter_system(CALL_amdsmi_get_socket_info);
    int64_t index = open_count ? index_of(SOCKETS_FROM, socket, scenario->socket_count) : -1;
    if (result == SUCCESS && index < 0)
        return INVAL;
    if (result == SUCCESS)
        snprintf(name, length, "socket %d", (int)index);
    return result;
}

static int processors(enum call call, void *socket, uint32_t *count, void **handles)
{
    int result = enter_system(call);
    if (result != SUCCESS)
        return result;
    int64_t index = index_of(SOCKETS_FROM, socket, scenario->socket_count);
    if (index < 0)
        return INVAL;
    *count = list_processors(index, *count, handles);
    return SUCCESS;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles)
{
    return processors(CALL_amdsmi_get_processor_handles, socket, count, handles);
}

int amdsmi_get_processor_handles_by_type(void *socket, uint32_t type, void **handles,
                                         uint32_t *count)
{
    int result = processors(CALL_amdsmi_get_processor_handles_by_type, socket, count, handles);
    if (result == SUCCESS && type != PROCESSOR_TYPE_GPU)
        *count = 0;
    return result;
}

int amdsmi_get_processor_handle_from_bdf(uint64_t bdf, void **handle)
{
    int result = enter_system(CALL_amdsmi_get_processor_handle_from_bdf);
    if (result != SUCCESS)
        return result;
    for (int64_t i = 0; i < scenario->gpu_count; i++)
        if ((uint64_t)scenario->gpus[i].bdf == bdf) {
            *handle = handle_of(PROCESSORS_FROM, i);
            return SUCCESS;
        }
    return NOT_FOUND;
}
