//! Rotary embedding by definition. Spec: rope-and-scale.md, section 1.

/// Turns the first `2 * inverse.len()` elements of a row at position `position`; the rest stays.
///
/// `inverse`: radians a position of each pair; `factor`: of cosine and sine; `interleaved`: pair i is
/// (2i, 2i+1), else (i, i + pairs).
#[must_use]
pub fn rope(row: &[f32], position: i64, inverse: &[f64], factor: f64, interleaved: bool) -> Vec<f64> {
    let mut turned: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
    let pairs = inverse.len();
    for (i, inverse) in inverse.iter().enumerate() {
        let (a, b) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + pairs) };
        let (sin, cos) = (position as f64 * inverse).sin_cos();
        let (x, y) = (f64::from(row[a]), f64::from(row[b]));
        turned[a] = factor * (x * cos - y * sin);
        turned[b] = factor * (y * cos + x * sin);
    }
    turned
}
