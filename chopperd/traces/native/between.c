/* Pieces become known: between.h. */
#include "between.h"

#include <stdlib.h>
#include <string.h>

pieces_t *pieces_open(void)
{
    pieces_t *pieces = calloc(1, sizeof(*pieces));
    if (pieces) {
        pieces->count = 1;
        pieces->patience = MOST_PATIENCE;
    }
    return pieces;
}

void pieces_close(pieces_t *pieces)
{
    free(pieces);
}

static bool is_same(const known_t *known, const char *at, const piece_t *piece)
{
    return known->piece.size == piece->size && known->piece.key == piece->key &&
           known->piece.in_args == piece->in_args && memcmp(known->bytes, at, (size_t)piece->size) == 0;
}

/* The number of a piece, which becomes known if there is room. */
static int16_t number_of_piece(pieces_t *pieces, const char *at, const piece_t *piece)
{
    known_t *known = pieces->known;
    int16_t number = FIRST_PIECE + 1;
    while (number < pieces->count && !is_same(&known[number], at, piece))
        number++;
    if (number == PIECES)
        return NO_PIECE;
    if (number == pieces->count) {
        pieces->count++;
        known[number].piece = *piece;
        known[number].piece.number = number;
        memcpy(known[number].bytes, at, (size_t)piece->size);
    }
    return number;
}

int16_t remember_piece(pieces_t *pieces, int before, const char *at, const piece_t *piece)
{
    int16_t number;
    int i = 0;
    if (before == NO_PIECE || piece->size > PIECE_BYTES)
        return NO_PIECE;
    if (pieces->patience < KNOWN_A_NEW)
        return NO_PIECE;
    pieces->patience -= KNOWN_A_NEW;
    number = number_of_piece(pieces, at, piece);
    if (number != NO_PIECE) {
        uint8_t *followers = pieces->known[before].followers;
        while (i < FOLLOWERS - 1 && followers[i])
            i++;
        followers[i] = (uint8_t)number;
    }
    return number;
}
