//! Steps of any size through any mix of layers.

use std::ops::ControlFlow;

use wgpu_attention::model::{RowKind, Storage};
use wgpu_attention::{Cache, Error, Prefill, Tensor};

use crate::common::kernels;
use crate::gpu;
use crate::toy::{Toy, every_design, softmax_only};

fn toy(storage: Storage, call_tokens: u32, tokens: u64, sequences: usize) -> Toy {
    let spec = every_design(storage, call_tokens);
    let cache = Cache::builder(&spec).tokens(tokens).sequences(sequences).build(gpu()).unwrap();
    Toy::new(gpu(), spec, cache)
}

fn prompt(count: u32) -> Vec<u32> {
    (1000..1000 + count).collect()
}

/// Each step's attention is held to one shot by definition; rows and states are compared at the end.
#[test]
fn chunks_of_any_size_equal_one_shot_for_every_design() {
    for kernel in kernels(gpu()) {
        for chunk in [1, 7, 64, 70] {
            let mut toy = toy(Storage::F32, chunk, 70, 1);
            toy.kernel = Some(kernel);
            for part in prompt(70).chunks(chunk as usize) {
                toy.feed(&[part.to_vec()]).unwrap();
            }
            toy.check();
        }
    }
}

#[test]
fn half_floats_too() {
    for storage in [Storage::F16, Storage::Bf16] {
        for paged in [false, true] {
            let spec = every_design(storage, 7);
            let builder = Cache::builder(&spec).tokens(40).sequences(2);
            let builder = if paged { builder.pages(16, 6) } else { builder };
            let mut toy = Toy::new(gpu(), spec, builder.build(gpu()).unwrap());
            for part in prompt(33).chunks(7) {
                toy.feed(&[part.to_vec(), part[..1].to_vec()]).unwrap();
            }
            toy.check();
        }
    }
}

/// W2, W3, V6: the same prompt cut in ways that meet the window's edge.
#[test]
fn cuts_around_the_window() {
    for cuts in [vec![10], vec![6, 4], vec![4, 4, 2], vec![1; 10], vec![1, 9], vec![5, 5], vec![3, 1, 6]] {
        let mut toy = toy(Storage::F32, 10, 24, 1);
        let mut tokens = prompt(10).into_iter();
        for n in cuts {
            toy.feed(&[tokens.by_ref().take(n).collect()]).unwrap();
        }
        toy.check();
        // W1: one more token after the ring is full
        toy.feed(&[vec![7]]).unwrap();
        toy.check();
    }
}

/// V8: sequences of different lengths, some pausing; what lies past each end is NaN.
#[test]
fn ragged_batches_read_their_own_rows() {
    for kernel in kernels(gpu()) {
        let mut toy = toy(Storage::F32, 6, 48, 3);
        toy.kernel = Some(kernel);
        let poison: Vec<_> = [6, 6, 6].map(|n| vec![u32::MAX; n]).to_vec();
        poisoned(&mut toy, &poison);
        toy.feed(&[vec![1, 2, 3, 4, 5], vec![11, 12], vec![]]).unwrap();
        poisoned(&mut toy, &poison);
        for step in 0..9 {
            let new = |s: u32, n: u32| (0..n).map(|i| 100 * s + 10 * step + i).collect::<Vec<_>>();
            toy.feed(&[new(3, step % 3), new(4, 1), new(5, step % 5)]).unwrap();
            poisoned(&mut toy, &poison);
        }
        toy.check();
    }
}

/// NaN into every slot that a step may write, then the step is dropped.
fn poisoned(toy: &mut Toy, tokens: &[Vec<u32>]) {
    let counts: Vec<_> = tokens.iter().map(Vec::len).collect();
    toy.cache.begin(&counts).unwrap();
    for layer in &toy.spec.layers {
        for rows in
            layer.rows.iter().filter(|r| !matches!(r.held, wgpu_attention::model::Held::Blocks { .. }))
        {
            let shape = [counts.len(), rows.heads as usize, counts[0], rows.width as usize];
            let nan = vec![f32::NAN; shape.iter().product()];
            let nan = Tensor::from_slice(gpu(), &nan, shape).unwrap();
            toy.cache.write(layer.index, rows.kind, &nan).unwrap();
        }
    }
    toy.cache.abandon();
}

#[test]
fn a_step_is_whole_or_nothing() {
    let mut toy = toy(Storage::F32, 4, 16, 1);
    toy.feed(&[vec![1, 2, 3]]).unwrap();
    let starts = |error: Error, text: &str| assert!(error.to_string().starts_with(text), "{error}");
    starts(toy.cache.commit().unwrap_err(), "begin = missing");
    starts(toy.cache.kv(0).unwrap_err(), "begin = missing");
    starts(toy.cache.begin(&[1, 1]).unwrap_err(), "counts has shape [2]");
    starts(toy.cache.begin(&[14]).unwrap_err(), "counts is 14 after 3");
    starts(
        toy.cache.begin(&[5]).unwrap_err(),
        "counts is 5 of sequence 0, but must be at most the 4 tokens a call that the ring of layer 1",
    );
    toy.cache.begin(&[2]).unwrap();
    starts(toy.cache.begin(&[1]).unwrap_err(), "begin = [2]");
    starts(toy.cache.truncate(0, 1).unwrap_err(), "begin = [2]");
    starts(toy.cache.commit().unwrap_err(), "commit = layer 0 (full)");
    let wrong = Tensor::from_slice(gpu(), &[0f32; 48], [1, 2, 3, 8]).unwrap();
    starts(toy.cache.write(0, RowKind::Key, &wrong).unwrap_err(), "rows has shape [1, 2, 3, 8]");
    starts(toy.cache.write(9, RowKind::Key, &wrong).unwrap_err(), "layer is 9");
    starts(toy.cache.write(0, RowKind::Latent, &wrong).unwrap_err(), "layer is 0");
    toy.cache.abandon();
    toy.check();
    // written in full, then dropped
    toy.forward(&[vec![90, 91, 92, 93]]).unwrap();
    toy.cache.abandon();
    toy.check();
    toy.feed(&[vec![4, 5]]).unwrap();
    toy.check();
}

#[test]
fn a_prompt_is_fed_in_chunks_with_progress_and_an_end() {
    let toy = toy(Storage::F32, 8, 64, 2);
    let tokens = prompt(30);
    let mut calls = Vec::new();
    // the driver owns the cache: the toy lends its own and takes it back
    let spec = toy.spec.clone();
    let mut inner = Toy::new(gpu(), spec.clone(), toy.cache);
    let placeholder = Cache::builder(&spec).tokens(1).build(gpu()).unwrap();
    let mut cache = std::mem::replace(&mut inner.cache, placeholder);
    let forward = |inner: &mut Toy, cache: &mut Cache, new: &[u32]| {
        std::mem::swap(&mut inner.cache, cache);
        let done = inner.write(&[new.to_vec(), vec![]]);
        std::mem::swap(&mut inner.cache, cache);
        inner.seen[0].extend(new);
        done
    };
    let done = Prefill::new(8)
        .progress(|fed, all| {
            calls.push((fed, all));
            if fed < 24 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .run(&mut cache, 0, tokens.len(), |cache, at| forward(&mut inner, cache, &tokens[at]))
        .unwrap();
    assert_eq!((done.fed, done.cancelled), (24, true));
    assert_eq!(calls, [(0, 30), (8, 30), (16, 30), (24, 30)]);
    assert_eq!(cache.seen(0).unwrap(), 24);
    // an error in the middle: what came before stays
    let failed = Prefill::new(3).run(&mut cache, 0, 6, |cache, at| {
        if at.start == 3 {
            return Err(Error::MemoryOverflow { what: "a test" });
        }
        forward(&mut inner, cache, &tokens[24..][at])
    });
    assert_eq!(failed.unwrap_err(), Error::MemoryOverflow { what: "a test" });
    assert_eq!(cache.seen(0).unwrap(), 27);
    let done =
        Prefill::new(100).run(&mut cache, 0, 3, |cache, at| forward(&mut inner, cache, &tokens[27..][at]));
    assert_eq!(done.unwrap().fed, 3);
    std::mem::swap(&mut inner.cache, &mut cache);
    inner.check();
    assert!(Prefill::new(0).run(&mut inner.cache, 0, 3, |_, _| Ok(())).is_err());
}

/// Masks that see more than a ring holds, or positions of one's own, are refused.
#[test]
fn attention_asks_no_more_than_the_cache_holds() {
    use wgpu_attention::Attention;
    let spec = softmax_only(Storage::F32, 8, 2);
    let mut cache = Cache::builder(&spec).tokens(30).build(gpu()).unwrap();
    cache.begin(&[1]).unwrap();
    let q = Tensor::from_slice(gpu(), &[0f32; 16], [1, 2, 1, 8]).unwrap();
    let run = |attention: Attention, layer| attention.run_cached(gpu(), &q, &cache.kv(layer).unwrap());
    assert!(run(Attention::causal(), 0).is_ok());
    assert!(run(Attention::causal().window(5), 1).is_ok());
    assert!(run(Attention::causal().chunk(4), 2).is_ok());
    for attention in [
        Attention::causal(),
        Attention::causal().window(6),
        Attention::bidirectional().window(5),
        Attention::causal().window(5).sink_tokens(1),
    ] {
        assert!(run(attention, 1).unwrap_err().to_string().starts_with("window is"));
    }
    assert!(run(Attention::causal().q_start(3), 0).unwrap_err().to_string().starts_with("q_start ="));
    let wide = Tensor::from_slice(gpu(), &[0f32; 32], [1, 2, 2, 8]).unwrap();
    let kv = cache.kv(0).unwrap();
    assert!(
        Attention::causal().run_cached(gpu(), &wide, &kv).unwrap_err().to_string().starts_with("q has shape")
    );
}

/// A lost device is an error of every call that needs it, never silence.
#[test]
fn a_lost_device_is_said_to_be_lost() {
    let own = wgpu_attention::Gpu::new().unwrap();
    let spec = softmax_only(Storage::F32, 8, 2);
    let cache = Cache::builder(&spec).tokens(30).build(&own).unwrap();
    let mut toy = Toy::new(&own, spec.clone(), cache);
    toy.feed(&[vec![1, 2]]).unwrap();
    own.device().destroy();
    let lost =
        |error: Error| assert!(matches!(error, Error::DeviceLost { .. } | Error::Device { .. }), "{error}");
    lost(toy.forward(&[vec![3]]).unwrap_err());
    toy.cache.abandon();
    lost(toy.cache.snapshot(0).and_then(|kept| kept.to_bytes(&own)).unwrap_err());
    lost(toy.cache.read_rows(0, 0, RowKind::Key).unwrap_err());
    lost(toy.cache.begin(&[1]).unwrap_err());
}
