//! How the tensors of a batch are cut into pieces that are on their way at the same time. Pure: the same on all members.

/// Bytes of one tensor in a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) tensor: usize,
    /// Where they begin in the tensor.
    pub(super) from: usize,
    /// Where they begin in the piece.
    pub(super) at: usize,
    pub(super) len: usize,
}

/// Bytes that travel and are reduced together.
pub(super) type Piece = Vec<Segment>;

/// How many bytes a piece has.
pub(super) fn len(piece: &Piece) -> usize {
    piece.last().map_or(0, |last| last.at + last.len)
}

/// Cuts tensors of these lengths, one after the other, into pieces of at most `most` bytes: a multiple of every element's size,
/// as are the lengths, so no element is cut.
pub(super) fn cut(lengths: impl IntoIterator<Item = usize>, most: usize) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (tensor, len) in lengths.into_iter().enumerate() {
        let mut from = 0;
        while from < len {
            let used = pieces.last().map_or(most, self::len);
            if used == most {
                pieces.push(Piece::new());
            }
            let at = used % most;
            let part = (len - from).min(most - at);
            if let Some(piece) = pieces.last_mut() {
                piece.push(Segment { tensor, from, at, len: part });
            }
            from += part;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_in_one_piece() {
        for lengths in [&[][..], &[0], &[16], &[8, 0, 8, 24], &[100, 4, 1000, 64, 64], &[64, 64]] {
            let pieces = cut(lengths.iter().copied(), 64);
            let mut next = (0, 0);
            for piece in &pieces {
                assert!((1..=64).contains(&len(piece)));
                let mut at = 0;
                for segment in piece {
                    while next.1 == lengths[next.0] {
                        next = (next.0 + 1, 0);
                    }
                    assert_eq!((segment.tensor, segment.from, segment.at), (next.0, next.1, at));
                    next.1 += segment.len;
                    at += segment.len;
                }
            }
            let total: usize = pieces.iter().map(len).sum();
            assert_eq!(total, lengths.iter().sum());
            assert_eq!(pieces.len(), total.div_ceil(64), "all full but the last");
        }
    }
}
