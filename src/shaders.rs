//! Kernel texts without a device: for the program's `shader` command and for the compilers of other platforms.

use std::collections::BTreeMap;

use crate::gpu::shader::{self, Constants, Value};
use crate::kernels::attention::{self, Problem};
use crate::kernels::{
    AttentionSubgroup, AttentionTiled, Kernel, REGISTRY, ceiling, merge_partials, pack_words,
};
use crate::{Attention, AttentionPlan, AttentionShape, DType, Limits, Mask, Result};

/// A kernel text as some device would get it.
#[derive(Debug, Clone)]
pub struct Variant {
    /// File stem in `shaders/`.
    pub kernel: &'static str,
    /// `S` needs a known subgroup size, `W` nothing.
    pub family: char,
    /// Kernel and constants.
    pub label: String,
    /// WGSL.
    pub text: String,
    /// Workgroup memory that the host counts on, in bytes.
    pub workgroup_bytes: u32,
}

/// Kernels by name: file stem, operator and family of each.
#[must_use]
pub fn kernels() -> Vec<(&'static str, &'static str, char)> {
    REGISTRY.iter().map(|r| (r.name, r.operator, r.family)).collect()
}

/// Files in `shaders/` that hold an entry point.
#[must_use]
pub fn files() -> Vec<&'static str> {
    shader::kernels().collect()
}

fn constants_of(sets: &[(String, String)]) -> Constants {
    sets.iter().fold(Constants::default(), |constants, (name, value)| {
        let value = match (value.parse::<u32>(), value.parse::<bool>()) {
            (Ok(number), _) => Value::U32(number),
            (_, Ok(switch)) => Value::Bool(switch),
            _ => Value::Name(value.clone().into()),
        };
        constants.set(name.clone(), value)
    })
}

/// Text of a kernel with constants set by name; values are numbers, `true`, `false` or names.
///
/// # Errors
/// No such kernel, or a name that its file does not have.
pub fn source(kernel: &str, sets: &[(String, String)]) -> Result<String> {
    Ok(shader::source(kernel, &constants_of(sets))?.text)
}

/// Whether replacing `from` changes a kernel's text.
///
/// # Errors
/// As [`source`].
pub fn is_in(kernel: &str, from: &str) -> Result<bool> {
    let plain = Constants::default();
    let edit = (from.to_owned(), String::new());
    Ok(shader::edited(kernel, &plain, Some(&edit))?.text != shader::source(kernel, &plain)?.text)
}

/// Place in `shaders/` that line `line` (from 1) of [`source`]'s text stems from.
///
/// # Errors
/// As [`source`].
pub fn origin(kernel: &str, sets: &[(String, String)], line: usize) -> Result<String> {
    let (file, at) = shader::source(kernel, &constants_of(sets))?.origin(line);
    Ok(format!("shaders/{file}:{at}"))
}

/// Bytes of the parameters that the host writes for each kernel with more than a few.
#[must_use]
pub fn params_bytes() -> Vec<(&'static str, usize)> {
    vec![
        (AttentionSubgroup::NAME, size_of::<attention::Params>()),
        (AttentionTiled::NAME, size_of::<attention::Params>()),
        (merge_partials::NAME, size_of::<merge_partials::Params>()),
        (pack_words::NAME, size_of::<pack_words::Params>()),
    ]
}

/// Devices that nobody has, one for each way a kernel can be tuned.
#[must_use]
pub fn invented_devices() -> Vec<(&'static str, Limits)> {
    let portable = Limits::webgpu();
    let large = Limits { workgroup_memory: 32 << 10, f16: true, ..portable.clone() };
    vec![
        ("portable", portable.clone()),
        ("software, 8 wide", Limits { subgroup: Some(8), software: true, ..portable.clone() }),
        ("software, 4 wide", Limits { subgroup: Some(4), software: true, ..portable.clone() }),
        ("software, 16 wide", Limits { subgroup: Some(16), software: true, ..portable }),
        ("32 wide", Limits { subgroup: Some(32), ..large.clone() }),
        ("64 wide", Limits { subgroup: Some(64), ..large.clone() }),
        ("no fixed subgroup size", large),
    ]
}

/// Problems that use every option and storage type at least once.
fn problems() -> Result<Vec<Problem>> {
    let shape =
        AttentionShape { batch: 2, heads_q: 8, heads_kv: 2, seq_q: 128, seq_kv: 512, dim_k: 64, dim_v: 64 };
    let decode = AttentionShape { seq_q: 1, seq_kv: 8192, dim_k: 128, dim_v: 128, ..shape };
    let wide = AttentionShape { dim_k: 576, dim_v: 512, heads_kv: 1, ..shape };
    let odd = AttentionShape { dim_k: 5, dim_v: 7, ..shape };
    let causal = Attention::causal;
    let mut problems = vec![
        causal().problem_of(&shape, DType::F32)?,
        causal().problem_of(&AttentionShape { dim_k: 128, dim_v: 128, ..shape }, DType::F16)?,
        causal().without_lse().output(DType::Bf16).problem_of(&shape, DType::Bf16)?,
        causal().output(DType::F16).problem_of(&decode, DType::F16)?,
        causal().problem_of(&decode, DType::F32)?,
        causal().problem_of(&decode, DType::Bf16)?,
        causal().problem_of(&wide, DType::F32)?,
        causal().problem_of(&odd, DType::F32)?,
        causal().output(DType::F16).problem_of(&odd, DType::F16)?,
        causal().output(DType::Bf16).problem_of(&odd, DType::Bf16)?,
        causal().window(16).sink_tokens(4).softcap(50.0).problem_of(&shape, DType::F32)?,
        Attention::bidirectional().window(16).problem_of(&shape, DType::F32)?,
        causal().chunk(32).problem_of(&shape, DType::F32)?,
    ];
    let plain = Attention::bidirectional().problem_of(&shape, DType::F32)?;
    let full = Problem { kv_len: true, q_starts: true, sinks: true, alibi: true, ..plain };
    for bias in [DType::F32, DType::F16, DType::Bf16] {
        problems.push(Problem { bias: Some(bias), ..full.clone() });
    }
    let everything = Mask { window: Some(9), sink_tokens: 2, chunk: Some(64), ..Mask::causal() };
    let everything = Attention::bidirectional().mask(everything).softcap(30.0);
    let everything = everything.problem_of(&decode, DType::F32)?;
    problems.push(Problem { kv_len: true, sinks: true, ..everything });
    Ok(problems)
}

/// A spread of variants that uses every kernel, option and storage type at least once.
///
/// # Errors
/// None in a sound build.
pub fn variants() -> Result<Vec<Variant>> {
    let mut found: BTreeMap<String, Variant> = BTreeMap::new();
    let mut add = |kernel: &'static str, constants: &Constants, workgroup_bytes: u32| -> Result<()> {
        let label = constants.label(kernel);
        let family = REGISTRY.iter().find(|r| r.name == kernel).map_or('W', |r| r.family);
        let text = shader::source(kernel, constants)?.text;
        found.insert(label.clone(), Variant { kernel, family, label, text, workgroup_bytes });
        Ok(())
    };
    for (_, limits) in invented_devices() {
        for problem in problems()? {
            let plan = AttentionPlan::choose(&problem, &limits, None)?;
            let constants = plan.constants(&problem, &limits);
            add(plan.kernel, &constants, plan.tuning.workgroup_bytes)?;
        }
    }
    for problem in problems()? {
        let o = if problem.packs_words() { merge_partials::f32_operand(problem.dim_v) } else { problem.o };
        let merge =
            merge_partials::Problem { dim_v: problem.dim_v, o, sinks: problem.sinks, lse: problem.lse };
        add(merge_partials::NAME, &merge_partials::constants(merge), 0)?;
    }
    for dtype in [DType::F16, DType::Bf16] {
        add(pack_words::NAME, &pack_words::constants(dtype), 0)?;
    }
    for kernel in [ceiling::COPY, ceiling::READ, ceiling::MULTIPLY_ADD] {
        add(kernel, &Constants::default(), 0)?;
    }
    Ok(found.into_values().collect())
}
