//! Thousands of operations on a tiny cache, each checked against lists of tokens.

use wgpu_attention::Cache;
use wgpu_attention::model::Storage;

use crate::gpu;
use crate::toy::{Toy, every_design, softmax_only};

struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn play(toy: &mut Toy, seed: u64, operations: usize, max_call: u64) {
    let mut dice = Dice(seed);
    let n = toy.seen.len();
    let mut kept = None;
    let mut refused = [0; 4];
    for operation in 0..operations {
        let s = dice.roll(n as u64) as usize;
        let length = toy.seen[s].len() as u64;
        match dice.roll(12) {
            0..=4 => {
                let counts: Vec<_> = (0..n).map(|_| dice.roll(max_call + 2).saturating_sub(1)).collect();
                let new: Vec<Vec<u32>> =
                    counts.iter().map(|&c| (0..c).map(|_| dice.roll(1 << 20) as u32).collect()).collect();
                match dice.roll(5) {
                    0 => {
                        if toy.forward(&new).is_ok() {
                            toy.cache.abandon();
                        }
                    }
                    _ => refused[0] += usize::from(toy.feed(&new).is_err()),
                }
            }
            5 | 6 => {
                let to = if dice.roll(4) == 0 {
                    dice.roll(length + 1)
                } else {
                    length.saturating_sub(dice.roll(3))
                };
                match toy.cache.truncate(s, to) {
                    Ok(()) => toy.seen[s].truncate(to as usize),
                    Err(_) => refused[1] += 1,
                }
            }
            7 => toy.cache.checkpoint(s).unwrap(),
            8 => {
                let (to, position) = (dice.roll(n as u64) as usize, length.saturating_sub(dice.roll(2)));
                match toy.cache.fork(s, to, position) {
                    Ok(()) => toy.seen[to] = toy.seen[s][..position as usize].to_vec(),
                    Err(_) => refused[2] += 1,
                }
            }
            9 => kept = Some((toy.cache.snapshot(s).unwrap(), toy.seen[s].clone())),
            10 => {
                if let Some((snapshot, history)) = &kept {
                    match toy.cache.restore(s, snapshot) {
                        Ok(()) => toy.seen[s].clone_from(history),
                        Err(_) => refused[3] += 1,
                    }
                }
            }
            _ => {
                if dice.roll(3) == 0 || length > 40 {
                    toy.cache.reset(s).unwrap();
                    toy.seen[s].clear();
                }
            }
        }
        if operation % 16 == 0 {
            toy.check();
        }
        if let Some(free) = toy.cache.free_pages()
            && toy.seen.iter().all(Vec::is_empty)
        {
            assert_eq!(free, 8, "pages were lost");
        }
    }
    toy.check();
    assert!(refused[0] > 0 && refused[1] > 0, "{refused:?}");
}

#[test]
fn random_operations_on_every_design() {
    let spec = every_design(Storage::F32, 4);
    let builder = Cache::builder(&spec).tokens(48).sequences(2).checkpoints(2);
    let mut toy = Toy::new(gpu(), spec, builder.build(gpu()).unwrap());
    play(&mut toy, 1, 700, 4);
}

#[test]
fn random_operations_on_pages() {
    let spec = every_design(Storage::F16, 4);
    let builder = Cache::builder(&spec).tokens(48).sequences(3).pages(16, 8).checkpoints(2);
    let mut toy = Toy::new(gpu(), spec, builder.build(gpu()).unwrap());
    play(&mut toy, 2, 700, 4);
}

#[test]
fn random_operations_on_softmax_layers() {
    let spec = softmax_only(Storage::F32, 8, 5);
    let builder = Cache::builder(&spec).tokens(60).sequences(3).pages(16, 8);
    let mut toy = Toy::new(gpu(), spec, builder.build(gpu()).unwrap());
    play(&mut toy, 3, 1200, 5);
}

#[test]
fn random_operations_on_quantised_rows() {
    let spec = softmax_only(Storage::Q8_0, 32, 5);
    let builder = Cache::builder(&spec).tokens(60).sequences(2);
    let mut toy = Toy::new(gpu(), spec, builder.build(gpu()).unwrap());
    play(&mut toy, 4, 500, 5);
}
