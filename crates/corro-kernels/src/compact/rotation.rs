//! The fast Hadamard transform, in blocks: what is large in a few places becomes middling everywhere.

/// Transforms each whole block of `block` values (a power of two), scaled so that the same again undoes it. What is left at
/// the end, shorter than a block, is transformed in blocks of smaller powers of two.
#[inline(always)]
pub(crate) fn hadamard(values: &mut [f32], block: usize) {
    let mut rest = values;
    let mut size = block;
    while size > 1 {
        let whole = rest.len() / size * size;
        let (blocks, after) = rest.split_at_mut(whole);
        for block in blocks.chunks_exact_mut(size) {
            transform(block);
        }
        rest = after;
        size /= 2;
    }
}

#[inline(always)]
fn transform(block: &mut [f32]) {
    let mut half = 1;
    while half < block.len() {
        for pair in block.chunks_exact_mut(2 * half) {
            let (left, right) = pair.split_at_mut(half);
            for (a, b) in left.iter_mut().zip(right) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let scale = 1.0 / (block.len() as f32).sqrt();
    for value in block {
        *value *= scale;
    }
}
