//! Feeding a prompt in chunks.

use std::ops::{ControlFlow, Range};

use super::Cache;
use crate::{Error, Result};

/// Feeds a prompt to one sequence in chunks, whatever mix of layers there is: memory stays flat in its length.
///
/// ```no_run
/// use std::ops::ControlFlow;
/// use wgpu_attention::{Cache, Prefill, Result};
///
/// fn feed(cache: &mut Cache, prompt: &[u32]) -> Result<()> {
///     let done = Prefill::new(512)
///         .progress(|fed, all| {
///             eprintln!("{fed} of {all}");
///             ControlFlow::Continue(())
///         })
///         .run(cache, 0, prompt.len(), |cache, positions| {
///             // run the model on prompt[positions]: write each layer's rows and attend
///             Ok(())
///         })?;
///     assert!(!done.cancelled);
///     Ok(())
/// }
/// ```
pub struct Prefill<'a> {
    chunk: usize,
    progress: Box<dyn FnMut(usize, usize) -> ControlFlow<()> + 'a>,
}

impl std::fmt::Debug for Prefill<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prefill").field("chunk", &self.chunk).finish_non_exhaustive()
    }
}

/// How far a prompt got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefilled {
    /// Tokens that are in the cache.
    pub fed: usize,
    /// Whether the progress callback ended it before the last chunk.
    pub cancelled: bool,
}

impl<'a> Prefill<'a> {
    /// Feeds `chunk` tokens at a time, the last chunk maybe fewer.
    #[must_use]
    pub fn new(chunk: usize) -> Self {
        Self { chunk, progress: Box::new(|_, _| ControlFlow::Continue(())) }
    }

    /// Called before the first chunk and after each with the tokens fed and all tokens;
    /// [`ControlFlow::Break`] ends the prompt there.
    #[must_use]
    pub fn progress(self, progress: impl FnMut(usize, usize) -> ControlFlow<()> + 'a) -> Self {
        Self { progress: Box::new(progress), ..self }
    }

    /// Feeds `tokens` tokens. For each chunk, `forward` gets the cache with a step begun and the chunk's place in
    /// the prompt; it writes every layer. The step is committed if it returns `Ok`.
    ///
    /// # Errors
    /// A chunk of 0 tokens, a step that [`Cache::begin`] refuses, or what `forward` returns: the cache is then as
    /// it was before that chunk, with the chunks before it fed.
    pub fn run(
        mut self,
        cache: &mut Cache,
        sequence: usize,
        tokens: usize,
        mut forward: impl FnMut(&mut Cache, Range<usize>) -> Result<()>,
    ) -> Result<Prefilled> {
        if self.chunk == 0 {
            return Err(Error::OutOfRange {
                field: "chunk",
                value: "0".into(),
                bound: "at least 1".into(),
                remedy: "feed some hundred tokens at a time",
            });
        }
        cache.sequence(sequence)?;
        let mut counts = vec![0; cache.sequences()];
        let mut fed = 0;
        while fed < tokens {
            if (self.progress)(fed, tokens).is_break() {
                return Ok(Prefilled { fed, cancelled: true });
            }
            let end = (fed + self.chunk).min(tokens);
            counts[sequence] = end - fed;
            cache.begin(&counts)?;
            if let Err(error) = forward(cache, fed..end).and_then(|()| cache.commit()) {
                cache.abandon();
                return Err(error);
            }
            fed = end;
        }
        let _ = (self.progress)(fed, tokens);
        Ok(Prefilled { fed, cancelled: false })
    }
}
