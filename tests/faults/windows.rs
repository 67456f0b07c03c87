//! Windows, chunks, sink tokens and learned sinks.

use super::common::{BOUND, Call, close, gpu};
use super::{identity, near, on_each_kernel};
use wgpu_attention::Mask;

/// Equal scores, so that the output shows which keys were seen.
fn shown(n: usize, mask: Mask) -> Call {
    Call { q: vec![0.0; n * 8], v: identity(n), mask, ..Call::new([1, 1, 1, n, n, 8, n]) }
}

fn seen(call: &Call, want: impl Fn(usize) -> Vec<usize>) {
    call.check_all(gpu());
    let n = call.shape.seq_kv;
    on_each_kernel(call, |o, _| {
        for (i, row) in o.chunks(n).enumerate() {
            let keys: Vec<_> = (0..n).filter(|&j| row[j] > 0.0).collect();
            assert_eq!(keys, want(i), "row {i} of {:?}", call.mask);
        }
    });
}

/// The rows `first .. first + count` of a causal call on its own positions, against all rows at once.
fn in_parts(mask: Mask, n: usize, cuts: &[&[usize]]) {
    let all = Call { mask, ..Call::new([1, 2, 1, n, n, 8, 8]) };
    let (whole, _) = all.reference();
    let [q, k, v] = all.tensors(gpu());
    for cut in cuts {
        assert_eq!(cut.iter().sum::<usize>(), n);
        let mut first = 0;
        for &count in *cut {
            let cut = |t: &wgpu_attention::Tensor, first, count| t.narrow(2, first, count).unwrap();
            let seen = first + count;
            let (q, k, v) = (cut(&q, first, count), cut(&k, 0, seen), cut(&v, 0, seen));
            let o = all.attention(gpu()).run(gpu(), &q, &k, &v).unwrap().o.read::<f32>(gpu()).unwrap();
            for h in 0..2 {
                let want = &whole[(h * n + first) * 8..(h * n + seen) * 8];
                close("rows of a part", &o[h * count * 8..(h + 1) * count * 8], want, BOUND, 0.0);
            }
            first = seen;
        }
    }
}

#[test]
fn w1_a_window_counts_the_query_itself() {
    let mask = Mask { window: Some(3), ..Mask::causal() };
    seen(&shown(6, mask), |i| (i.saturating_sub(2)..=i).collect());
    // the single-token path
    let step = Call { q: vec![0.0; 8], v: identity(6), mask, ..Call::new([1, 1, 1, 1, 6, 8, 6]) };
    seen(&step, |_| vec![3, 4, 5]);
    for window in [1, 5, 6, 7, 100] {
        let mask = Mask { window: Some(window), ..Mask::causal() };
        seen(&shown(6, mask), |i| ((i + 1).saturating_sub(window as usize)..=i).collect());
    }
}

#[test]
fn w2_prompts_in_parts_longer_and_shorter_than_the_window() {
    let mask = Mask { window: Some(4), ..Mask::causal() };
    in_parts(mask, 10, &[&[10], &[6, 4], &[4, 4, 2], &[1; 10]]);
}

#[test]
fn w3_steps_across_the_length_of_the_window() {
    in_parts(Mask { window: Some(8), ..Mask::causal() }, 10, &[&[6, 1, 1, 1, 1]]);
}

#[test]
fn w4_a_window_reaches_as_far_ahead_as_back() {
    let mask = Mask { window: Some(2), ..Mask::bidirectional() };
    seen(&shown(6, mask), |i| (i.saturating_sub(1)..=(i + 1).min(5)).collect());
    seen(&shown(6, Mask { window: Some(1), ..mask }), |i| vec![i]);
}

#[test]
fn w5_chunks_are_absolute_blocks() {
    let mask = Mask { chunk: Some(4), ..Mask::causal() };
    seen(&shown(9, mask), |i| (i / 4 * 4..=i).collect());
    in_parts(mask, 9, &[&[3, 3, 3], &[4, 5], &[1; 9]]);
    seen(&shown(9, Mask { chunk: Some(4), ..Mask::bidirectional() }), |i| {
        (i / 4 * 4..(i / 4 * 4 + 4).min(9)).collect()
    });
    // sink tokens count once, inside the window or not, and never across a chunk
    let mask = Mask { window: Some(2), sink_tokens: 3, ..Mask::causal() };
    seen(&shown(9, mask), |i| (0..=i).filter(|&j| j < 3 || j + 1 >= i).collect());
    let mask = Mask { chunk: Some(4), ..mask };
    seen(&shown(9, mask), |i| (i / 4 * 4..=i).filter(|&j| j < 3 || j + 1 >= i).collect());
}

#[test]
fn w6_learned_sinks_join_the_denominator_only() {
    // decode, tiled and split
    for (seq_q, splits) in [(1, 1), (20, 1), (1, 3)] {
        for (keys, sink) in [(1, 0.0), (3, 3f32.ln()), (48, 48f32.ln())] {
            let mut call = Call::new([1, 1, 1, seq_q, keys, 8, 8]);
            (call.mask, call.splits, call.sinks) = (Mask::bidirectional(), Some(splits), Some(vec![sink]));
            call.q.fill(0.0);
            call.v.fill(1.0);
            on_each_kernel(&call, |o, lse| {
                assert!(o.iter().all(|&x| near(x, 0.5, 1e-6)));
                assert!(lse.iter().all(|&s| near(s, (2.0 * keys as f32).ln(), 1e-5)));
            });
        }
    }
}

#[test]
fn w7_a_sink_far_above_every_score_does_not_overflow() {
    for splits in [1, 2] {
        for sink in [80.0, 3e38] {
            let mut call = Call::new([1, 1, 1, 1, 64, 1, 4]);
            (call.q, call.scale, call.sinks) = (vec![-100.0], 1.0, Some(vec![sink]));
            (call.k, call.v, call.splits) = (vec![1.0; 64], vec![1.0; 256], Some(splits));
            on_each_kernel(&call, |o, lse| {
                assert!(
                    o.iter().all(|x| x.abs() < 1e-30) && near(lse[0], sink, sink * 1e-6),
                    "{o:?} {lse:?}"
                );
            });
        }
        // and one far below leaves no trace
        let call =
            Call { sinks: Some(vec![-3e38]), splits: Some(splits), ..Call::new([1, 1, 1, 1, 64, 8, 4]) };
        call.check_all(gpu());
    }
}

#[test]
fn w8_a_sink_is_not_scaled() {
    let mut call = Call::new([1, 1, 1, 1, 1, 1, 1]);
    (call.q, call.k, call.v) = (vec![4.0], vec![4.0], vec![1.0]);
    (call.scale, call.sinks) = (0.125, Some(vec![2.0]));
    on_each_kernel(&call, |o, _| assert!(near(o[0], 0.5, 1e-6)));
    // nor capped
    on_each_kernel(&Call { softcap: Some(1e6), ..call }, |o, _| assert!(near(o[0], 0.5, 1e-6)));
}

#[test]
fn positions_at_the_edge_of_what_is_taken() {
    let far = i64::from(wgpu_attention::MAX_POSITION);
    let (most, n) = (wgpu_attention::MAX_POSITION, 40);
    for (q_start, k_start) in [(-far, most - n as u32), (far - n as i64, 0), (-far, 0), (far - 40, most - 40)]
    {
        for (window, chunk) in [(Some(most), None), (Some(7), None), (None, Some(most)), (None, Some(5))] {
            for causal in [true, false] {
                let mask = Mask { causal, q_start: Some(q_start), k_start, window, sink_tokens: 0, chunk };
                Call { mask, ..Call::new([1, 1, 1, n, n, 8, 8]) }.check_all(gpu());
            }
        }
    }
}
