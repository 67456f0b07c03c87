//! Truncation, checkpoints, snapshots, forks, files: all layers or none.

use wgpu_attention::model::{LayerCache, Storage};
use wgpu_attention::{Cache, Snapshot};

use crate::gpu;
use crate::toy::{Toy, every_design, softmax_only};

fn toy(call_tokens: u32, checkpoints: usize) -> Toy {
    let spec = every_design(Storage::F32, call_tokens);
    let builder = Cache::builder(&spec).tokens(64).sequences(2).checkpoints(checkpoints);
    Toy::new(gpu(), spec, builder.build(gpu()).unwrap())
}

fn softmax(call_tokens: u32) -> Toy {
    let spec = softmax_only(Storage::F32, 8, call_tokens);
    Toy::new(gpu(), spec.clone(), Cache::builder(&spec).tokens(64).sequences(2).build(gpu()).unwrap())
}

fn tokens(first: u32, count: u32) -> Vec<u32> {
    (first..first + count).collect()
}

fn feed(toy: &mut Toy, first: u32, count: u32) {
    toy.feed(&[tokens(first, count), vec![]]).unwrap();
}

fn truncate(toy: &mut Toy, to: usize) {
    toy.cache.truncate(0, to as u64).unwrap();
    toy.seen[0].truncate(to);
    toy.check();
}

/// V2: a ring goes back no further than its slack, here one token; the message says how far, and nothing changes.
#[test]
fn a_ring_goes_back_no_further_than_its_slack() {
    let mut toy = softmax(1);
    for i in 0..10 {
        feed(&mut toy, i, 1);
    }
    let error = toy.cache.truncate(0, 7).unwrap_err().to_string();
    assert!(
        error.starts_with("to is 7, but must be 9, the nearest position that works, since layer 1 (window)"),
        "{error}"
    );
    toy.check();
    feed(&mut toy, 50, 1);
    toy.check();
    truncate(&mut toy, 0);
    feed(&mut toy, 70, 1);
    toy.check();
}

/// V3: slack for three drafts; all of them rejected, another three fed, none the worse.
#[test]
fn rejected_drafts_leave_the_window_whole() {
    let mut toy = softmax(4);
    for i in 0..3 {
        feed(&mut toy, 10 * i, 4);
    }
    for round in 0..5 {
        feed(&mut toy, 100 + 10 * round, 3);
        let back = toy.seen[0].len() - 3;
        truncate(&mut toy, back);
        feed(&mut toy, 200 + 10 * round, 3);
        let back = toy.seen[0].len() - 1;
        truncate(&mut toy, back);
    }
    assert!(toy.cache.begin(&[5, 0]).is_err());
    toy.check();
}

/// V4, B3: a recurrent layer goes back to its checkpoints and nowhere else.
#[test]
fn states_go_back_to_checkpoints_only() {
    let mut toy = toy(6, 2);
    feed(&mut toy, 0, 6);
    toy.cache.checkpoint(0).unwrap();
    feed(&mut toy, 10, 1);
    toy.cache.checkpoint(0).unwrap();
    feed(&mut toy, 20, 2);
    let error = toy.cache.truncate(0, 8).unwrap_err().to_string();
    assert!(error.starts_with("to is 8, but must be 9, the nearest position that works, since layer 6 (gated delta) keeps no state"), "{error}");
    let error = toy.cache.truncate(0, 5).unwrap_err().to_string();
    assert!(error.starts_with("to is 5, but must be 6"), "{error}");
    assert!(
        toy.cache.truncate(0, 10).unwrap_err().to_string().starts_with("to is 10, but must be at most the 9")
    );
    toy.check();
    truncate(&mut toy, 9);
    truncate(&mut toy, 7);
    // B4: again to the same place, and no further back than kept
    truncate(&mut toy, 7);
    feed(&mut toy, 30, 1);
    truncate(&mut toy, 7);
    truncate(&mut toy, 6);
    assert_eq!(toy.cache.checkpoints(0).unwrap(), [6]);
    for i in 0..3 {
        feed(&mut toy, 40 + i, 1);
        toy.cache.checkpoint(0).unwrap();
    }
    assert_eq!(toy.cache.checkpoints(0).unwrap(), [8, 9]);
    assert_eq!(toy.cache.checkpoint_bytes(), 2 * 4 * (24 + 30));
    assert!(toy.cache.truncate(0, 6).is_err());
    toy.check();
}

/// B1: 4 tokens, 3 in one call, back by 3, the same 3 again.
#[test]
fn the_same_tokens_after_going_back() {
    let mut toy = toy(6, 1);
    feed(&mut toy, 0, 4);
    toy.cache.checkpoint(0).unwrap();
    feed(&mut toy, 4, 3);
    truncate(&mut toy, 4);
    feed(&mut toy, 4, 3);
    toy.check();
}

/// Draft m, accept j, go back, replay the accepted: over a hybrid of all designs.
#[test]
fn speculative_decoding_over_every_design() {
    for paged in [false, true] {
        let spec = every_design(Storage::F32, 6);
        let builder = Cache::builder(&spec).tokens(200).sequences(1).checkpoints(1);
        let builder = if paged { builder.pages(16, 14) } else { builder };
        let mut toy = Toy::new(gpu(), spec, builder.build(gpu()).unwrap());
        toy.feed(&[tokens(0, 6)]).unwrap();
        for round in 0..12u32 {
            let (drafts, accepted) = (4, (round * 7 + 3) as usize % 5);
            toy.cache.checkpoint(0).unwrap();
            let base = toy.seen[0].len();
            let draft = tokens(1000 + 10 * round, drafts);
            toy.feed(std::slice::from_ref(&draft)).unwrap();
            if accepted < drafts as usize {
                toy.cache.truncate(0, base as u64).unwrap();
                toy.seen[0].truncate(base);
                let mut right = draft[..accepted].to_vec();
                right.push(5000 + round);
                toy.feed(&[right]).unwrap();
            }
            toy.check();
        }
    }
}

/// V5: a window of 3 resumes at 5 exactly while positions 3 and 4 are held.
#[test]
fn prefixes_are_reused_while_their_window_is_held() {
    let mut spec = softmax_only(Storage::F32, 8, 2);
    spec.layers.truncate(2);
    for rows in &mut spec.layers[1].rows {
        rows.held = wgpu_attention::model::Held::Window { window: 3, call_tokens: 2 };
    }
    let mut toy =
        Toy::new(gpu(), spec.clone(), Cache::builder(&spec).tokens(64).sequences(2).build(gpu()).unwrap());
    for i in 0..6 {
        feed(&mut toy, i, 1);
    }
    // four slots: after 6 tokens 2..6 are held, after 7 tokens 3..7
    toy.cache.check_truncate(0, 5).unwrap();
    feed(&mut toy, 6, 1);
    toy.cache.check_truncate(0, 5).unwrap();
    feed(&mut toy, 7, 1);
    let error = toy.cache.check_truncate(0, 5).unwrap_err().to_string();
    assert!(error.starts_with("to is 5, but must be 6"), "{error}");
    assert!(toy.cache.fork(0, 1, 5).is_err());
    toy.check();
    toy.cache.fork(0, 1, 6).unwrap();
    toy.seen[1] = toy.seen[0][..6].to_vec();
    toy.check();
    toy.feed(&[vec![90], vec![91, 92]]).unwrap();
    toy.check();
}

/// A chunk's first position needs nothing of the chunk before.
#[test]
fn chunked_layers_go_back_to_borders_of_chunks() {
    let mut spec = softmax_only(Storage::F32, 8, 1);
    spec.layers.swap_remove(1);
    spec.layers[1].index = 1;
    let mut toy =
        Toy::new(gpu(), spec.clone(), Cache::builder(&spec).tokens(64).sequences(2).build(gpu()).unwrap());
    for i in 0..11 {
        feed(&mut toy, i, 1);
    }
    // four slots: 7..11 are held; 10 needs 8 and 9, 7 needs 4 to 6, 4 needs nothing
    toy.cache.check_truncate(0, 10).unwrap();
    assert!(toy.cache.check_truncate(0, 7).is_err());
    truncate(&mut toy, 4);
    feed(&mut toy, 50, 1);
    toy.check();
}

#[test]
fn snapshots_come_back_in_this_cache_in_others_and_from_files() {
    for storage in [Storage::F32, Storage::F16] {
        let spec = every_design(storage, 6);
        let built = |tokens, paged: bool| {
            let builder = Cache::builder(&spec).tokens(tokens).sequences(2);
            let builder = if paged { builder.pages(16, 9) } else { builder };
            Toy::new(gpu(), spec.clone(), builder.build(gpu()).unwrap())
        };
        let mut toy = built(64, false);
        for i in 0..5 {
            feed(&mut toy, 10 * i, 5);
        }
        let snapshot = toy.cache.snapshot(0).unwrap();
        let history = toy.seen[0].clone();
        assert_eq!(snapshot.position(), 25);
        feed(&mut toy, 80, 3);
        toy.cache.restore(0, &snapshot).unwrap();
        toy.seen[0].clone_from(&history);
        toy.check();
        feed(&mut toy, 90, 2);
        toy.check();
        // another sequence, a larger cache, one with pages
        toy.cache.restore(1, &snapshot).unwrap();
        toy.seen[1].clone_from(&history);
        toy.check();
        let path =
            std::env::temp_dir().join(format!("wgpu-attention-{}-{storage}.cache", std::process::id()));
        snapshot.save(gpu(), &path).unwrap();
        let loaded = Snapshot::load(gpu(), &path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for (tokens, paged) in [(100, false), (30, true)] {
            let mut other = built(tokens, paged);
            other.cache.restore(1, &loaded).unwrap();
            other.seen[1].clone_from(&history);
            other.check();
            other.feed(&[vec![1, 2, 3], vec![4, 5]]).unwrap();
            other.check();
        }
        // too small, too few pages, another model: nothing changes
        let mut small = built(24, false);
        assert!(
            small.cache.restore(0, &loaded).unwrap_err().to_string().starts_with("snapshot is of 25 tokens")
        );
        small.check();
        let mut spec = spec.clone();
        let LayerCache { rows, .. } = &mut spec.layers[3];
        rows[0].width = 64;
        let mut other = Cache::builder(&spec).tokens(64).build(gpu()).unwrap();
        let error = other.restore(0, &loaded).unwrap_err().to_string();
        assert!(error.starts_with("snapshot is of layer 3 with Latent 1x32"), "{error}");
    }
}

#[test]
fn damaged_bytes_are_refused() {
    let mut toy = softmax(4);
    feed(&mut toy, 0, 4);
    let bytes = toy.cache.snapshot(0).unwrap().to_bytes(gpu()).unwrap();
    assert!(Snapshot::from_bytes(gpu(), &bytes).is_ok());
    let says = |bytes: &[u8], field: &str| {
        let error = Snapshot::from_bytes(gpu(), bytes).unwrap_err().to_string();
        assert!(error.starts_with(&format!("snapshot: {field}:")), "{error}");
    };
    for at in (20..bytes.len()).step_by(37) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        says(&damaged, "checksum");
    }
    let mut other = bytes.clone();
    other[8] = 2;
    says(&other, "version");
    says(&bytes[..bytes.len() - 1], "checksum");
    says(&[bytes.as_slice(), &[0]].concat(), "checksum");
    says(b"GGUF and more", "magic");
    says(&bytes[..10], "version");
    says(&[], "magic");
}
