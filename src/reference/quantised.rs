//! Quantised rows by definition. Spec: cache-and-systems.md, section 8.
//!
//! A row is encoded to its values' bytes and its scales' bytes; a cache keeps all values before all scales.

use half::{bf16, f16};

use crate::model::Storage;
use crate::{Error, Result};

/// Values that share a scale in `q8_0` and `q4_0`.
const BLOCK: usize = 32;

fn unknown<T>(storage: Storage) -> Result<T> {
    Err(Error::DType {
        field: "rows",
        dtype: storage.name(),
        allowed: "f32, f16, bf16, q8_0, q4_0, fp8 or int8",
    })
}

/// Value and scale bytes of a row.
///
/// # Errors
/// A storage without a definition here.
pub fn encode(storage: Storage, row: &[f32]) -> Result<(Vec<u8>, Vec<u8>)> {
    let top = row.iter().fold(0f32, |m, x| m.max(x.abs()));
    let inverse = |d: f32| if d == 0.0 { 0.0 } else { 1.0 / d };
    let blocks = row.chunks(BLOCK).map(|part| {
        let mut block = [0f32; BLOCK];
        block[..part.len()].copy_from_slice(part);
        block
    });
    let (mut values, mut scales) = (Vec::new(), Vec::new());
    match storage {
        Storage::F32 => values.extend(row.iter().flat_map(|x| x.to_le_bytes())),
        Storage::F16 => values.extend(row.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes())),
        Storage::Bf16 => values.extend(row.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes())),
        Storage::Q8_0 => {
            for block in blocks {
                let d = block.iter().fold(0f32, |m, x| m.max(x.abs())) / 127.0;
                values.extend(block.map(|x| (x * inverse(d)).round() as i8 as u8));
                scales.extend(f16::from_f32(d).to_le_bytes());
            }
        }
        Storage::Q4_0 => {
            for block in blocks {
                let largest = block.iter().fold(0f32, |m, &x| if x.abs() > m.abs() { x } else { m });
                let d = largest / -8.0;
                let q = block.map(|x| ((x * inverse(d) + 8.5) as u8).min(15));
                values.extend((0..16).map(|j| q[j] | (q[j + 16] << 4)));
                scales.extend(f16::from_f32(d).to_le_bytes());
            }
        }
        Storage::Int8 => {
            let scale = (top / 127.0).max(1e-6);
            let q = |x: &f32| (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
            values.extend(row.iter().map(q));
            scales.extend(scale.to_le_bytes());
        }
        Storage::Fp8 => {
            let scale = top / 448.0;
            values.extend(row.iter().map(|&x| e4m3(x * inverse(scale))));
            scales.extend(scale.to_le_bytes());
        }
        other => return unknown(other),
    }
    Ok((values, scales))
}

/// Rows of `width` values from the bytes of all their values and all their scales.
///
/// # Errors
/// A storage without a definition here.
pub fn decode(storage: Storage, width: usize, values: &[u8], scales: &[u8]) -> Result<Vec<f32>> {
    let half = |at: usize| f16::from_le_bytes([scales[2 * at], scales[2 * at + 1]]).to_f32();
    let whole = |at: usize| f32::from_le_bytes(std::array::from_fn(|i| scales[4 * at + i]));
    // blocks are padded, rows are not
    let unpadded = |values: Vec<f32>| -> Vec<f32> {
        let padded = width.next_multiple_of(BLOCK);
        values.chunks(padded).flat_map(|row| row[..width].to_vec()).collect()
    };
    Ok(match storage {
        Storage::F32 => values.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        Storage::F16 => values.chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Storage::Bf16 => values.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Storage::Q8_0 => {
            unpadded(values.iter().enumerate().map(|(i, &q)| f32::from(q as i8) * half(i / BLOCK)).collect())
        }
        Storage::Q4_0 => unpadded(
            values
                .chunks(16)
                .enumerate()
                .flat_map(|(block, bytes)| {
                    let low = bytes.iter().map(|b| b & 15);
                    let high = bytes.iter().map(|b| b >> 4);
                    low.chain(high).map(|q| (f32::from(q) - 8.0) * half(block)).collect::<Vec<_>>()
                })
                .collect(),
        ),
        Storage::Int8 => {
            values.iter().enumerate().map(|(i, &q)| f32::from(q as i8) * whole(i / width)).collect()
        }
        Storage::Fp8 => values.iter().enumerate().map(|(i, &q)| from_e4m3(q) * whole(i / width)).collect(),
        other => return unknown(other),
    })
}

/// What storing a row makes of it.
///
/// # Errors
/// A storage without a definition here.
pub fn round_trip(storage: Storage, row: &[f32]) -> Result<Vec<f32>> {
    let (values, scales) = encode(storage, row)?;
    decode(storage, row.len(), &values, &scales)
}

/// Largest error that storing a value of a row (or block) whose largest is `top` may make, the rounding of its
/// scale included: half a step and the scale's own half step, on the largest code.
#[must_use]
pub fn error_bound(storage: Storage, top: f32) -> f32 {
    // a scale of 16 bits is off by 2^-11 of itself, or by half of the smallest half float
    let half_scale = |codes: f32| top * 2f32.powi(-11) + codes * 2f32.powi(-25);
    let slack = 1.0 + 1e-5;
    slack
        * match storage {
            Storage::F16 => top * 2f32.powi(-11) + 2f32.powi(-25),
            Storage::Bf16 => top * 2f32.powi(-8),
            Storage::Q8_0 => top / 254.0 + half_scale(127.0),
            // the side opposite to the largest ends at 7 of 8 steps
            Storage::Q4_0 => top / 8.0 + half_scale(8.0),
            Storage::Int8 => top / 254.0 + 5e-7,
            // three bits of fraction: a sixteenth of the value, which is at most the largest
            Storage::Fp8 | Storage::Fp8Groups | Storage::Fp8Tensor => top / 16.0,
            Storage::F32 => 0.0,
        }
}

/// The nearest e4m3 code, ties to even; at most 448 in size.
fn e4m3(x: f32) -> u8 {
    let size = x.abs().min(448.0);
    // codes grow with their values: the nearest of all, the even one of two
    let nearest = (0..0x7f_u8).min_by(|&a, &b| {
        let distance = |code: u8| (f64::from(from_e4m3(code)) - f64::from(size)).abs();
        distance(a).total_cmp(&distance(b)).then((a % 2).cmp(&(b % 2)))
    });
    nearest.unwrap_or(0) | if x < 0.0 { 0x80 } else { 0 }
}

fn from_e4m3(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match exponent {
        0 => fraction * 2f32.powi(-9),
        e => (1.0 + fraction / 8.0) * 2f32.powi(e - 7),
    };
    if code & 0x80 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// x = (i - 16) / 8, encoded by ggml's own definition on paper.
    #[test]
    fn blocks_as_the_spec_gives_them() {
        let x: Vec<f32> = (0..32u8).map(|i| (f32::from(i) - 16.0) / 8.0).collect();
        let (values, scales) = encode(Storage::Q8_0, &x).unwrap();
        let first: Vec<_> = values[..6].iter().map(|&q| q as i8).collect();
        assert_eq!(first, [-127, -119, -111, -103, -95, -87]);
        let d = f16::from_le_bytes([scales[0], scales[1]]).to_f32();
        assert!((d - 0.015_747_07).abs() < 1e-8, "{d}");
        let (values, scales) = encode(Storage::Q4_0, &x).unwrap();
        let expected = [128, 145, 145, 162, 162, 179, 179, 196, 196, 213, 213, 230, 230, 247, 247, 248];
        assert_eq!(values, expected);
        assert_eq!(f16::from_le_bytes([scales[0], scales[1]]).to_f32(), 0.25);
    }

    #[test]
    fn zeros_stay_zeros() {
        for storage in [Storage::Q8_0, Storage::Q4_0, Storage::Int8, Storage::Fp8] {
            assert_eq!(round_trip(storage, &[0.0; 40]).unwrap(), [0.0; 40]);
        }
        assert_eq!(encode(Storage::Q4_0, &[0.0; 32]).unwrap().0, [0x88; 16]);
    }

    #[test]
    fn fp8_codes_round_to_even() {
        for (x, code) in
            [(448.0, 0x7e), (1000.0, 0x7e), (1.0, 0x38), (-1.0, 0xb8), (0.015_625, 8), (1.0625, 0x38)]
        {
            assert_eq!(e4m3(x), code, "{x}");
        }
        // halfway between 1.125 and 1.25, and between the two smallest
        assert_eq!((e4m3(1.1875), e4m3(2f32.powi(-10)), e4m3(3.0 * 2f32.powi(-10))), (0x3a, 0, 2));
    }
}
