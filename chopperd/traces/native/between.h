/* The text between two values of an event: brackets, blanks, a comma, the next key, a colon.
 *
 * A profiler writes few such pieces, in few orders. Each that was read is remembered with its meaning,
 * and the piece before it points to it: there it is compared, many bytes at a time, and not parsed
 * again. The same bytes after the same piece mean the same.
 */
#ifndef CHOPPERD_BETWEEN_H
#define CHOPPERD_BETWEEN_H

#include "scanner.h"
#include "text.h"

enum {
    PIECE_BYTES = 48, /* longer ones are read each time */
    PIECES = 256,
    FOLLOWERS = 8,
    KNOWN_A_NEW = 8, /* pieces that must have been known for each new one, else none is looked up */
    MOST_PATIENCE = 1 << 14,
};

/* What a piece between two values means: which key it ends in, -1 where that is none of ours, and
 * CLOSES where an object ends; whether the object is that of the arguments. */
enum { CLOSES = -2 };
/* Numbers of what is before the first piece of an event, and of a piece that is not known. */
enum { FIRST_PIECE = 0, NO_PIECE = -1 };
typedef struct {
    int16_t size, key, number;
    bool in_args;
} piece_t;

/* Know a piece that was read behind piece `before`; its number, NO_PIECE where it can't be known. */
int16_t remember_piece(pieces_t *pieces, int before, const char *at, const piece_t *piece);

/* Piece 0, FIRST_PIECE, is none itself. Followers end where one is 0. */
typedef struct {
    char bytes[PIECE_BYTES];
    piece_t piece;
    uint8_t followers[FOLLOWERS];
} known_t;

struct pieces {
    known_t known[PIECES];
    int count, patience;
};

/* The piece at `at` if it is known behind piece `before`, else NULL. */
static inline const piece_t *known_piece(
    pieces_t *pieces, int before, const char *at, const char *end)
{
    const known_t *last;
    if (before == NO_PIECE || end - at < PIECE_BYTES)
        return NULL;
    last = &pieces->known[before];
    for (int i = 0; i < FOLLOWERS && last->followers[i]; i++) {
        const known_t *next = &pieces->known[last->followers[i]];
        if (starts_with(at, next->bytes, next->piece.size)) {
            pieces->patience += pieces->patience < MOST_PATIENCE;
            return &next->piece;
        }
    }
    return NULL;
}

#endif
