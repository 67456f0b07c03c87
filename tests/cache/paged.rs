//! Pages: shared, copied when written, given back.

use wgpu_attention::Cache;
use wgpu_attention::model::Storage;

use crate::common::kernels;
use crate::gpu;
use crate::toy::{Toy, every_design};

fn toy(page: u32, pages: u32, sequences: usize) -> Toy {
    let spec = every_design(Storage::F32, 20);
    let builder = Cache::builder(&spec).tokens(200).sequences(sequences).pages(page, pages).checkpoints(4);
    Toy::new(gpu(), spec, builder.build(gpu()).unwrap())
}

fn tokens(first: u32, count: u32) -> Vec<u32> {
    (first..first + count).collect()
}

/// W10: two sequences in one pool, by turns; each equals its own run.
#[test]
fn sequences_that_take_turns_keep_apart() {
    for kernel in kernels(gpu()) {
        let mut toy = toy(16, 8, 2);
        toy.kernel = Some(kernel);
        for step in 0..6 {
            toy.feed(&[tokens(100 * step, 7), vec![]]).unwrap();
            toy.feed(&[vec![], tokens(100 * step + 50, 5)]).unwrap();
            toy.feed(&[tokens(100 * step + 20, 1), tokens(100 * step + 70, 1)]).unwrap();
        }
        toy.check();
    }
}

#[test]
fn pages_of_every_size() {
    for page in [16, 32, 64, 128, 256] {
        let mut toy = toy(page, 200_u32.div_ceil(page) + 1, 1);
        for step in 0..7 {
            toy.feed(&[tokens(step * 20, 19)]).unwrap();
        }
        toy.check();
    }
}

#[test]
fn forks_share_pages_until_one_writes() {
    let mut toy = toy(16, 7, 3);
    toy.feed(&[tokens(0, 20), vec![], vec![]]).unwrap();
    toy.feed(&[tokens(20, 17), vec![], vec![]]).unwrap();
    assert_eq!(toy.cache.free_pages(), Some(4));
    toy.cache.fork(0, 1, 37).unwrap();
    toy.seen[1] = toy.seen[0].clone();
    assert_eq!((toy.cache.free_pages(), toy.cache.shared_pages()), (Some(4), Some(3)));
    toy.check();
    // the fork writes: its last partial page is copied, the full ones stay shared
    toy.feed(&[vec![], tokens(500, 3), vec![]]).unwrap();
    assert_eq!((toy.cache.free_pages(), toy.cache.shared_pages()), (Some(3), Some(2)));
    toy.check();
    // the original's last page is its own again
    toy.feed(&[tokens(600, 2), vec![], vec![]]).unwrap();
    assert_eq!((toy.cache.free_pages(), toy.cache.shared_pages()), (Some(3), Some(2)));
    toy.check();
    // a dropped step gives its copy back
    toy.cache.fork(1, 2, 40).unwrap();
    toy.seen[2] = toy.seen[1].clone();
    toy.cache.begin(&[0, 0, 9]).unwrap();
    assert_eq!(toy.cache.free_pages(), Some(1));
    toy.cache.abandon();
    assert_eq!(toy.cache.free_pages(), Some(3));
    toy.check();
    // sequences leave and join
    toy.cache.reset(0).unwrap();
    toy.seen[0].clear();
    toy.check();
    toy.feed(&[tokens(900, 4), tokens(910, 1), tokens(920, 1)]).unwrap();
    toy.check();
    for s in 0..3 {
        toy.cache.reset(s).unwrap();
    }
    assert_eq!((toy.cache.free_pages(), toy.cache.shared_pages()), (Some(7), Some(0)));
}

#[test]
fn a_full_pool_refuses_and_keeps_what_it_has() {
    let mut toy = toy(16, 3, 2);
    toy.feed(&[tokens(0, 17), tokens(100, 10)]).unwrap();
    assert_eq!(toy.cache.free_pages(), Some(0));
    toy.feed(&[tokens(17, 15), tokens(110, 6)]).unwrap();
    let error = toy.forward(&[tokens(50, 1), tokens(150, 1)]).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "counts is [1, 1], which takes 2 more pages, but must be within the 0 free ones of 3"
        ),
        "{error}"
    );
    toy.check();
    toy.cache.reset(1).unwrap();
    toy.seen[1].clear();
    toy.feed(&[tokens(50, 1), vec![]]).unwrap();
    toy.check();
    // a fork needs no page until it writes
    toy.cache.fork(0, 1, 33).unwrap();
    toy.seen[1] = toy.seen[0].clone();
    toy.check();
    assert!(toy.forward(&[vec![], tokens(60, 1)]).is_err());
    toy.check();
}
