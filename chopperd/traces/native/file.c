/* A plain file scanned without its bytes passing through Python, and so without Python's lock. */
#include "scanner.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    READ_AT_ONCE = 1 << 17, /* which a core's own cache holds, with what is made of it */
    ROOM = 2 * READ_AT_ONCE + 1,
};

/* Reads the elements from `offset` on, about `most` bytes of them: where the next one starts. Less is
 * read if the array or the file ends, if an element is long or has long damage (which the caller reads
 * again only when there is far more text), and if reading fails. */
int64_t scan_file(scan_t *scan, int32_t file, int64_t offset, int64_t most)
{
    int64_t start = offset, size = 0;
    if (scan->text == NULL && (scan->text = malloc(ROOM)) == NULL)
        return offset;
    while (start - offset < most && size <= READ_AT_ONCE) {
        ssize_t count = pread(file, scan->text + size, READ_AT_ONCE, start + size);
        if (count <= 0)
            break;
        size += count;
        scan->text[size] = '\0';
        scan_events(scan, scan->text, size, size, false, 0);
        if (scan->outcome == ENDED) /* the bracket is left to Python, and what follows it */
            return start + scan->consumed - 1;
        if (scan->out_of_memory)
            break;
        start += scan->consumed;
        size -= scan->consumed;
        memmove(scan->text, scan->text + scan->consumed, (size_t)size);
    }
    return start;
}
