//! Whether an outcome is right. The bounds of `docs/numerics.md` live here and nowhere else.

use super::{Case, HostData, HostTensor, Outcome};
use crate::reference::Rounding;
use crate::{DType, Result};

/// One element that differs.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Output tensor.
    pub tensor: String,
    /// Place on each axis.
    pub index: Vec<usize>,
    /// What came.
    pub got: f64,
    /// What was expected.
    pub want: f64,
}

/// Whether an outcome is right, and by how much not.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Right.
    pub passed: bool,
    /// Largest relative L2 error of an output.
    pub rel_l2: f64,
    /// Largest absolute error of an element.
    pub max_abs: f64,
    /// The worst eight elements, worst first.
    pub worst: Vec<Cell>,
    /// Elements beyond the bound.
    pub wrong: usize,
    /// The bound, in words.
    pub bound: String,
}

/// Relative L2 error that f32 results may have.
pub(crate) const REL_L2: f64 = 1e-5;
/// Error of an element, as a share of the largest, that f32 results may have.
pub(crate) const REL_MAX: f64 = 1e-4;

/// Errors of one tensor: absolute, and infinite where finiteness itself differs.
fn errors<'a>(got: &'a [f32], want: &'a [f32]) -> impl Iterator<Item = f64> + 'a {
    got.iter().zip(want).map(|(&g, &w)| match (g.is_finite(), w.is_finite()) {
        (true, true) => (f64::from(g) - f64::from(w)).abs(),
        _ if g == w => 0.0,
        _ => f64::INFINITY,
    })
}

fn largest(data: &[f32]) -> f64 {
    data.iter().filter(|x| x.is_finite()).fold(0.0, |m, &x| m.max(f64::from(x).abs()))
}

fn norm(errors: impl Iterator<Item = f64>) -> f64 {
    errors.map(|e| e * e).sum::<f64>().sqrt()
}

/// Units in the last place of numbers as large as `x`.
fn ulp(x: f64, dtype: DType) -> f64 {
    let bits = match dtype {
        DType::F16 => 10,
        DType::Bf16 => 7,
        _ => 23,
    };
    2f64.powi(x.max(f64::MIN_POSITIVE).log2().floor() as i32 - bits)
}

/// Judges an outcome: f32 against the case's expected values; 16-bit storage against the definition on the
/// rounded inputs, with at most twice the error of the plain loop rounded at the same places.
///
/// # Errors
/// The case has no definition, or an output is missing.
pub fn judge(case: &Case, outcome: &Outcome, dtype: DType) -> Result<Verdict> {
    let exact;
    let (expected, loose) = if dtype == DType::F32 {
        (&case.expected, None)
    } else {
        exact = case.reference(dtype, Rounding::None)?;
        (&exact, Some(case.reference(dtype, Rounding::Output(dtype))?))
    };
    if expected.is_empty() {
        return Err(case.fault("out", "the file holds no out. tensor to compare with; add what is expected"));
    }
    // a row that sees no key is exactly 0, not nearly
    let blind = expected.get("lse").and_then(HostTensor::floats).unwrap_or_default();
    let mut verdict = Verdict {
        passed: true,
        rel_l2: 0.0,
        max_abs: 0.0,
        worst: Vec::new(),
        wrong: 0,
        bound: match loose {
            None => format!("relative L2 {REL_L2:.0e}, each element {REL_MAX:.0e} of the largest"),
            Some(_) => "twice the rounded loop's error plus two units in the last place".into(),
        },
    };
    for (name, want) in expected {
        let field = format!("out.{name}");
        let Some(got) = outcome.tensors.get(name) else {
            return Err(case.fault(&field, "was not computed; the operator does not give it"));
        };
        if got.shape != want.shape {
            return Err(case.fault(&field, format!("has shape {:?}, but {:?} came", want.shape, got.shape)));
        }
        let (got, wanted) = match (&got.data, &want.data) {
            (HostData::F32(got), HostData::F32(wanted)) => (got, wanted),
            (HostData::I32(got), HostData::I32(wanted)) => {
                exactly(&mut verdict, name, &want.shape, got, wanted);
                continue;
            }
            _ => {
                return Err(case.fault(&field, "holds floats where integers are due, or the other way round"));
            }
        };
        let top = largest(wanted);
        let scale = norm(wanted.iter().filter(|x| x.is_finite()).map(|&x| f64::from(x)));
        let rel_l2 = norm(errors(got, wanted)) / scale.max(f64::MIN_POSITIVE);
        // lse is f32 whatever the storage
        let stored = if name == "lse" { DType::F32 } else { dtype };
        let (element, total) = match &loose {
            None => (REL_MAX * top, REL_L2),
            Some(rounded) => {
                let rounded = rounded.get(name).and_then(HostTensor::floats).unwrap_or_default();
                let worst = errors(rounded, wanted).fold(0.0, f64::max);
                (2.0 * worst + 2.0 * ulp(top, stored).max(REL_L2 * top), f64::INFINITY)
            }
        };
        let width = if name == "o" { want.shape.last().copied().unwrap_or(1).max(1) } else { usize::MAX };
        let sees_nothing = |flat: usize| name == "o" && blind.get(flat / width) == Some(&f32::NEG_INFINITY);
        let beyond = |(flat, e): &(usize, f64)| {
            e.is_nan() || *e > element || (sees_nothing(*flat) && got[*flat] != 0.0)
        };
        let wrong = errors(got, wanted).enumerate().filter(beyond).count();
        verdict.wrong += wrong;
        verdict.passed &= wrong == 0 && (scale == 0.0 || rel_l2 <= total);
        verdict.rel_l2 = verdict.rel_l2.max(if scale == 0.0 { 0.0 } else { rel_l2 });
        verdict.max_abs = errors(got, wanted).fold(verdict.max_abs, f64::max);
        let mut order: Vec<_> = errors(got, wanted).enumerate().filter(|&(_, e)| e > 0.0).collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1));
        verdict.worst.extend(order.iter().take(8).map(|&(flat, _)| Cell {
            tensor: name.clone(),
            index: unflatten(flat, &want.shape),
            got: f64::from(got[flat]),
            want: f64::from(wanted[flat]),
        }));
    }
    let gap = |c: &Cell| if c.got == c.want { 0.0 } else { (c.got - c.want).abs() };
    verdict.worst.sort_by(|a, b| gap(b).total_cmp(&gap(a)));
    verdict.worst.truncate(8);
    Ok(verdict)
}

/// Integers are places: they are right or wrong.
fn exactly(verdict: &mut Verdict, name: &str, shape: &[usize], got: &[i32], want: &[i32]) {
    let differing = got.iter().zip(want).enumerate().filter(|(_, (got, want))| got != want);
    for (flat, (&got, &want)) in differing {
        verdict.passed = false;
        verdict.wrong += 1;
        let index = unflatten(flat, shape);
        verdict.worst.push(Cell { tensor: name.to_owned(), index, got: got.into(), want: want.into() });
    }
}

fn unflatten(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (at, &n) in index.iter_mut().zip(shape).rev() {
        *at = flat % n;
        flat /= n;
    }
    index
}
