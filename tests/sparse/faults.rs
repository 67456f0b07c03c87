//! Wrong on purpose: each planted fault must be caught by the comparison that judges kernels.

use wgpu_attention::{DType, Gpu, Prefix, Tensor};

use super::indexed::Call;
use super::top_k::bits;
use super::{causal, families, gpu, index, nsa, top_k};
use crate::common::noise;

type Judge = Box<dyn Fn(&Gpu, bool) -> Result<(), String>>;

/// Fault, text, replacement, the call that shows it. Texts that only one family has are tried on that family.
fn faults() -> Vec<(&'static str, &'static str, &'static str, Judge)> {
    let choose = |scores: Vec<f32>, k: usize| -> Judge {
        let n = scores.len();
        Box::new(move |gpu, _| top_k::judged(gpu, &bits(&scores), [1, 1, n], k, Prefix::all(), &[n]))
    };
    let hidden = |seq_q, seq_kv, k| -> Judge {
        let seen = causal(1, seq_q, seq_kv, 0);
        let scores = noise(9, seq_q * seq_kv);
        let visible = || Prefix::causal().q_start(0);
        Box::new(move |gpu, _| top_k::judged(gpu, &bits(&scores), [1, seq_q, seq_kv], k, visible(), &seen))
    };
    let score = |shape: [usize; 5]| -> Judge {
        let seen = vec![shape[4]; shape[0] * shape[1]];
        Box::new(move |gpu, family| index::judged(gpu, family, shape, DType::F32, &Prefix::all(), &seen))
    };
    let attend = |call: Call| -> Judge { Box::new(move |gpu, family| call.judged(gpu, family)) };
    let list = |indices: Vec<i32>| Call::new([1, 4, 1, 1, 40, 8, 8], indices);
    let lengths = Tensor::from_slice(gpu(), &[3_i32], [1]).unwrap();
    let short = Call { visible: Prefix::all().kv_len(&lengths), seen: vec![3], ..list(vec![0, 5, 2]) };
    let select =
        |sizes: [usize; 5]| -> Judge { Box::new(move |gpu, family| nsa::judged(gpu, family, sizes)) };
    let zeros = (0..50).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect();
    let mut nan = noise(3, 50);
    nan[4] = f32::NAN;
    vec![
        ("negative zero is below zero", "bits > 0x80000000u", "bits >= 0x80000000u", choose(zeros, 7)),
        (
            "negative scores are in reverse",
            "~bits, bits",
            "bits & 0x7fffffffu, bits",
            choose(noise(1, 50), 40),
        ),
        (
            "NaN is the largest",
            "select(ordered, 0u, magnitude",
            "select(ordered, 0xffffffffu, magnitude",
            choose(nan, 3),
        ),
        (
            "ties go to later keys",
            "(equal && within < wanted)",
            "(equal && within >= 2u * wanted)",
            choose(vec![0.5; 24], 8),
        ),
        (
            "segments before are forgotten",
            "above += work[tally_word(row, s)];",
            "",
            choose(noise(2, 9000), 50),
        ),
        (
            "the lowest digit is ignored",
            "done = wanted == tile_found[2];",
            "done = params.shift == 10u || wanted == tile_found[2];",
            choose((0..900).map(|i| f32::from_bits(0x3f80_0000 + i * 7919 % 900)).collect(), 100),
        ),
        ("padding is left unwritten", "indices[out + i] = -1;", "", choose(noise(1, 5), 9)),
        ("a row sees one key more", "/ params.step + 1u", "/ params.step + 2u", hidden(9, 20, 4)),
        (
            "the indexer forgets the ReLU",
            "max(s[r * KEYS + u], 0.0)",
            "s[r * KEYS + u]",
            score([1, 2, 5, 8, 40]),
        ),
        ("weights are ignored", "w[at] * params.scale", "params.scale", score([1, 2, 5, 8, 40])),
        (
            "heads past the last are counted",
            "select(0.0, w[at] * params.scale, head < params.heads)",
            "w[at] * params.scale",
            score([1, 2, 5, 8, 40]),
        ),
        ("only the last heads count", "sum += scores[out + key];", "", score([1, 1, 70, 128, 40])),
        (
            "places of entries wrap around",
            "u32(entry) <= params.seq_kv / params.block",
            "true",
            attend(Call { block: 4, ..list(vec![3, 1 << 30, 1]) }),
        ),
        (
            "keys past the valid length are attended to",
            "exists && key < at.seen &&",
            "exists &&",
            attend(short),
        ),
        (
            "repeated entries count twice",
            "(place == 0u || entry != before)",
            "true",
            attend(list(vec![0, 0, 4, 4, 4, 9])),
        ),
        (
            "holes take part in the maximum and sum",
            "select(HOLE, key, exists)",
            "select(0u, key, exists)",
            attend(list(vec![3, -1, 1])),
        ),
        (
            "the stand-in for a hole is added",
            "vec4<f32>(), key_j == HOLE",
            "vec4<f32>(), key_j == 7u",
            attend(list(vec![3, -1, 1])),
        ),
        (
            "a block has one key",
            "u32(entry) * params.block + inside % params.block",
            "u32(entry) * params.block",
            attend(Call { block: 4, ..list(vec![1, 0, 7]) }),
        ),
        ("overlap is not counted", "weight * f32(times)", "weight", select([8, 2, 8, 4, 7])),
        ("the first block is not kept", "j == 0 || ", "", select([8, 8, 8, 3, 9])),
        ("the current block is not kept", "j == current || ", "", select([8, 8, 8, 3, 9])),
        ("gates are swapped", "gates[gate + 1u]", "gates[gate]", select([8, 8, 8, 3, 9])),
    ]
}

#[test]
fn every_fault_is_caught() {
    let mut missed = Vec::new();
    for family in families() {
        for (fault, from, to, judge) in faults() {
            judge(gpu(), family).unwrap_or_else(|why| panic!("wrong without a fault ({fault}): {why}"));
            let edited = gpu().with_edit(from, to);
            let held = super::kernels(family)
                .into_iter()
                .any(|kernel| wgpu_attention::shaders::occurrences(kernel, from).unwrap() == 1);
            if held {
                if judge(&edited, family).is_ok() {
                    missed.push(format!("{fault} (subgroups: {family})"));
                }
            }
        }
    }
    assert!(missed.is_empty(), "not caught: {}", missed.join("; "));
}

/// An edit that no longer matches any text would plant nothing.
#[test]
fn every_fault_still_finds_its_text() {
    for (fault, from, ..) in faults() {
        let found: usize = [true, false]
            .into_iter()
            .flat_map(super::kernels)
            .map(|kernel| wgpu_attention::shaders::occurrences(kernel, from).unwrap())
            .sum();
        assert!(found > 0, "{fault}: {from:?}");
    }
}
