//! What attention reads: keys and values as they lie.

use super::store::{Place, Store};
use super::{Cache, no_layer};
use crate::attention::{CachedKv, CachedRows, QueryPositions};
use crate::gpu::DType;
use crate::kernels::attention::KeyPlace;
use crate::model::{Held, RowKind};
use crate::{Error, Result};

impl Cache {
    /// Keys and values of a layer (or of the layer whose cache it shares), the pending step's included, for
    /// [`Attention::run_cached`](crate::Attention::run_cached).
    ///
    /// # Errors
    /// No step, a layer without keys and values, or a storage that no attention kernel reads.
    pub fn kv(&self, layer: u32) -> Result<CachedKv> {
        let pending = self.pending()?;
        let (_, keys) = self.store(layer, RowKind::Key)?;
        let (_, values) = self.store(layer, RowKind::Value)?;
        let n = self.sequences.len();
        let ends = self.sequences.iter().zip(&pending.counts).map(|(s, &count)| s.seen + count);
        let first = &self.sequences[0];
        let alike = self.sequences.iter().all(|s| s.seen == first.seen)
            && pending.counts.iter().all(|&count| count == pending.counts[0]);
        let positions = if alike {
            QueryPositions::Alike(first.seen as i64)
        } else {
            QueryPositions::Each([
                Self::words(pending, 0, DType::I32, vec![n])?,
                Self::words(pending, 2 * n, DType::U32, vec![n])?,
            ])
        };
        let window = match keys.held {
            Held::Window { window, .. } if keys.slots < self.extent.tokens => Some(window),
            _ => None,
        };
        let (place, pages) = match keys.place {
            Place::Linear => (KeyPlace::Linear, None),
            Place::Ring => (KeyPlace::Ring(keys.slots as u32), None),
            Place::Paged(page) => {
                let shape = vec![n, pending.pages_batch];
                (KeyPlace::Paged(page.ilog2()), Some(Self::words(pending, 3 * n, DType::U32, shape)?))
            }
        };
        Ok(CachedKv {
            k: rows(layer, keys)?,
            v: rows(layer, values)?,
            batch: n,
            heads: keys.format.heads as usize,
            seq_q: pending.longest() as usize,
            seq_kv: ends.max().unwrap_or(0) as usize,
            place,
            window,
            pages,
            positions,
        })
    }
}

fn rows(layer: u32, store: &Store) -> Result<CachedRows> {
    use crate::model::Storage;
    let format = store.format;
    let buffer = store.buffer.clone().ok_or_else(|| no_layer(layer, "one that holds rows"))?;
    let readable = matches!(format.storage, Storage::Q8_0 | Storage::Q4_0 | Storage::Fp8 | Storage::Int8);
    if format.dtype().is_none() && !readable {
        return Err(Error::DType {
            field: "kv",
            dtype: format.storage.name(),
            allowed: "f32, f16, bf16, q8_0, q4_0, fp8 or int8",
        });
    }
    let slot = format.heads * format.padded();
    // a pool belongs to all sequences
    let batch = if matches!(store.place, Place::Paged(_)) { 0 } else { store.slots as u32 * slot };
    Ok(CachedRows {
        buffer,
        storage: format.storage,
        dtype: format.dtype(),
        width: format.width as usize,
        strides: [batch, format.padded(), slot],
        scales: (store.scales_base() / 4) as u32,
    })
}
