/* Texts numbered in the order in which they come: a hash table with open places. */
#include "scanner.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_SLOTS 256

static uint64_t mixed(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static uint64_t hash_of(const char *text, int64_t size)
{
    uint64_t hash = (uint64_t)size, word;
    for (; size >= 8; text += 8, size -= 8) {
        memcpy(&word, text, 8);
        hash = mixed(hash, word);
    }
    word = 0;
    memcpy(&word, text, (size_t)size);
    hash = mixed(hash, word);
    return hash ^ hash >> 32;
}

static bool grown(void *pointer, int64_t bytes)
{
    void **memory = pointer;
    void *larger = realloc(*memory, (size_t)bytes);
    if (larger == NULL)
        return false;
    *memory = larger;
    return true;
}

static void place(strings_t *strings, int64_t number)
{
    uint64_t mask = (uint64_t)strings->slot_room - 1, slot = strings->hashes[number] & mask;
    while (strings->slots[slot])
        slot = (slot + 1) & mask;
    strings->slots[slot] = (uint32_t)number + 1;
}

/* Room for another text of a size. */
static bool make_room(strings_t *strings, int64_t size)
{
    if (strings->used + size > strings->room) {
        int64_t room = 2 * (strings->used + size) + 4096;
        if (!grown(&strings->bytes, room))
            return false;
        strings->room = room;
    }
    if (strings->count == strings->count_room) {
        int64_t room = 2 * strings->count_room + 64;
        if (!grown(&strings->ends, room * (int64_t)sizeof(int64_t)) ||
            !grown(&strings->hashes, room * (int64_t)sizeof(uint64_t)) ||
            !grown(&strings->marks, room))
            return false;
        strings->count_room = room;
    }
    if (2 * strings->count >= strings->slot_room) {
        int64_t room = strings->slot_room ? 4 * strings->slot_room : FIRST_SLOTS;
        if (!grown(&strings->slots, room * (int64_t)sizeof(uint32_t)))
            return false;
        strings->slot_room = room;
        memset(strings->slots, 0, (size_t)room * sizeof(uint32_t));
        for (int64_t number = 0; number < strings->count; number++)
            place(strings, number);
    }
    return true;
}

static bool is_text(const strings_t *strings, int64_t number, const char *text, int64_t size)
{
    int64_t start = number ? strings->ends[number - 1] : 0;
    return strings->ends[number] - start == size &&
           memcmp(strings->bytes + start, text, (size_t)size) == 0;
}

int32_t number_of(strings_t *strings, const char *text, int64_t size, bool *is_new)
{
    uint64_t hash = hash_of(text, size);
    *is_new = false;
    if (strings->slot_room) {
        uint64_t mask = (uint64_t)strings->slot_room - 1, slot = hash & mask;
        for (; strings->slots[slot]; slot = (slot + 1) & mask) {
            int64_t number = strings->slots[slot] - 1;
            if (strings->hashes[number] == hash && is_text(strings, number, text, size))
                return (int32_t)number;
        }
    }
    if (!make_room(strings, size))
        return ABSENT;
    memcpy(strings->bytes + strings->used, text, (size_t)size);
    strings->used += size;
    strings->ends[strings->count] = strings->used;
    strings->hashes[strings->count] = hash;
    strings->marks[strings->count] = 0;
    place(strings, strings->count);
    *is_new = true;
    return (int32_t)strings->count++;
}

void free_strings(strings_t *strings)
{
    free(strings->bytes);
    free(strings->ends);
    free(strings->hashes);
    free(strings->marks);
    free(strings->slots);
}
