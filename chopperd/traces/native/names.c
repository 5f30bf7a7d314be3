/* Texts of an event as numbers, and what is asked of its name. */
#include "scanner.h"

#include <stdlib.h>
#include <string.h>

/* Marks of names, worked out where they are asked for. */
enum { NOT_SHAPED = 1, SHAPED };

static const char SEPARATOR = '\x1f'; /* in no JSON text */

int32_t text_number(scan_t *scan, int which, const char *text, int64_t size, bool *is_new)
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

int32_t joined_number(
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

/* Whether shapes are stored of operators of a name. */
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

bool keeps_shapes(scan_t *scan, const token_t *name, int32_t number)
{
    uint8_t *mark = &scan->texts[NAMES].marks[number];
    if (!*mark)
        *mark = name->kind && is_shaped(scan, name->at, name->size) ? SHAPED : NOT_SHAPED;
    return *mark == SHAPED;
}

bool is_module(const token_t *name)
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

int32_t name_number(scan_t *scan, int which, const event_t *event)
{
    static const char no_name[] = "\"\"";
    const token_t *name = &event->keys[NAME];
    bool is_new, has_name = name->kind != 0;
    const char *text = has_name ? name->at : no_name;
    int64_t size = has_name ? name->size : (int64_t)sizeof(no_name) - 1;
    return text_number(scan, which, text, size, &is_new);
}

int32_t thread_number(scan_t *scan, const event_t *event)
{
    return joined_number(scan, THREADS, &event->keys[PID], 2, false);
}
