//! Merging and splitting.

use super::common::{Call, gpu, stored};
use super::{near, on_each_kernel};
use wgpu_attention::{DType, Partial, Tensor, merge_partials};

fn partial(o: f32, lse: f32) -> Partial {
    Partial {
        o: stored(gpu(), &[o; 4], [1, 1, 1, 4], DType::F32),
        lse: Tensor::from_slice(gpu(), &[lse], [1, 1, 1]).unwrap(),
    }
}

fn merged(parts: &[Partial]) -> (f32, f32) {
    let out = merge_partials(gpu(), parts).unwrap();
    (out.o.read::<f32>(gpu()).unwrap()[3], out.lse.unwrap().read::<f32>(gpu()).unwrap()[0])
}

#[test]
fn j1_parts_that_saw_nothing() {
    let empty = || partial(f32::NAN, f32::NEG_INFINITY);
    assert_eq!(merged(&[empty()]), (0.0, f32::NEG_INFINITY));
    assert_eq!(merged(&[empty(), empty()]), (0.0, f32::NEG_INFINITY));
    for parts in [[empty(), partial(2.5, 1.25)], [partial(2.5, 1.25), empty()]] {
        assert_eq!(merged(&parts), (2.5, 1.25));
    }
    assert!(merge_partials(gpu(), &[]).unwrap_err().to_string().starts_with("parts is empty"));
}

#[test]
fn j2_splits_of_any_number_give_the_same() {
    let call = Call::new([1, 2, 1, 2, 200, 16, 16]);
    for splits in [1, 2, 3, 7, 9, 33] {
        Call { splits: Some(splits), ..call.clone() }.check_all(gpu());
    }
    // 16-bit results that are not whole words, from splits
    for dtype in [DType::F16, DType::Bf16] {
        let call = Call { dtypes: [DType::F32, DType::F32, dtype], ..Call::new([1, 2, 1, 3, 200, 5, 5]) };
        Call { splits: Some(3), ..call }.check_all(gpu());
    }
}

#[test]
fn j6_logarithms_are_natural_on_both_sides() {
    let call = Call { q: vec![0.0; 8], ..Call::new([1, 1, 1, 1, 2, 8, 8]) };
    let ln2 = std::f32::consts::LN_2;
    on_each_kernel(&call, |_, lse| assert!(near(lse[0], ln2, 1e-6)));
    let (o, lse) = merged(&[partial(1.0, ln2), partial(3.0, ln2)]);
    assert!(near(o, 2.0, 1e-6) && near(lse, 4f32.ln(), 1e-6));
    for n in 1..6 {
        let parts: Vec<_> = (0..n).map(|i| partial(i as f32, 0.0)).collect();
        let (o, lse) = merged(&parts);
        assert!(near(o, (n - 1) as f32 / 2.0, 1e-5) && near(lse, (n as f32).ln(), 1e-5), "{n} parts");
    }
}
