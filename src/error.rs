//! Every way a call can be refused or fail.

/// Result of this crate's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call was refused (before any GPU work) or failed (in the device's own words).
///
/// Every refusal names the field as the API spells it, its value, the bound, and what to do.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // --- problems: what the caller asked for ---
    /// A field has a value outside its bounds.
    #[error("{field} is {value}, but must be {bound}: {remedy}")]
    OutOfRange {
        /// Field as the API spells it.
        field: &'static str,
        /// The value given.
        value: String,
        /// What it must be.
        bound: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Two tensors (or a tensor and its data) disagree about a size.
    #[error("{field} has shape {shape:?}, but {expected} is needed: {remedy}")]
    Shape {
        /// Tensor as the API spells it.
        field: &'static str,
        /// Its shape.
        shape: Vec<usize>,
        /// The shape that fits, in words or numbers.
        expected: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Query heads cannot be shared out evenly over key-value heads.
    #[error(
        "heads_q = {heads_q} is not a multiple of heads_kv = {heads_kv}: \
         give each key-value head the same number of query heads"
    )]
    Heads {
        /// Query heads.
        heads_q: usize,
        /// Key-value heads.
        heads_kv: usize,
    },
    /// A view whose strides no kernel reads.
    #[error("{field} has strides {strides:?}, but {bound}: {remedy}")]
    Strides {
        /// Tensor as the API spells it.
        field: &'static str,
        /// Its strides in elements.
        strides: Vec<usize>,
        /// What the strides must satisfy.
        bound: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A tensor is stored in a type that this place does not take.
    #[error("{field} is stored as {dtype}, but must be {allowed}: convert it, or choose another option")]
    DType {
        /// Tensor as the API spells it.
        field: &'static str,
        /// Its storage type.
        dtype: &'static str,
        /// Types that are taken.
        allowed: &'static str,
    },
    /// Options that exclude each other, or need each other.
    #[error("{field} = {value} {conflict}: {remedy}")]
    Options {
        /// Option as the API spells it.
        field: &'static str,
        /// Its value.
        value: String,
        /// What it clashes with.
        conflict: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// An output shares its buffer with another tensor of the same call.
    #[error(
        "{field} lies in the same buffer as {other}: WebGPU forbids writing and reading one buffer in \
             one dispatch, so give {field} a buffer of its own"
    )]
    SharedBuffer {
        /// The output.
        field: &'static str,
        /// The tensor it collides with.
        other: &'static str,
    },

    // --- limits: what the device allows ---
    /// More bytes must be bound at once than the device allows.
    #[error(
        "{field} needs a binding of {needed} bytes, but {limit} allows {allowed}: open the device with \
         a higher limit, or split {field} by {split}"
    )]
    Binding {
        /// Tensor as the API spells it.
        field: &'static str,
        /// Bytes needed.
        needed: u64,
        /// WebGPU's name of the limit.
        limit: &'static str,
        /// Bytes allowed.
        allowed: u64,
        /// Axis along which the caller can split.
        split: &'static str,
    },
    /// Workgroup memory is too small for a kernel.
    #[error(
        "{kernel} needs {needed} bytes of workgroup memory for {field} = {value}, the device allows {allowed}: \
         open the device with Gpu::builder().workgroup_memory({needed}), or lower {field}"
    )]
    WorkgroupMemory {
        /// Kernel, as in `shaders/`.
        kernel: &'static str,
        /// What drives the need.
        field: &'static str,
        /// Its value.
        value: u32,
        /// Bytes needed.
        needed: u32,
        /// Bytes allowed.
        allowed: u32,
    },
    /// A kernel cannot run on this device or problem.
    #[error("{kernel} needs {needs}, but the device has {has}")]
    Unsupported {
        /// Kernel, as in `shaders/`.
        kernel: &'static str,
        /// What it needs.
        needs: String,
        /// What there is.
        has: String,
    },
    /// No kernel of an operator can run; each reason is listed.
    #[error("no kernel for {operator} fits this device: {}", .declined.join("; "))]
    NoKernel {
        /// Operator.
        operator: &'static str,
        /// One reason a kernel.
        declined: Vec<String>,
    },

    // --- devices ---
    /// No adapter matches what was asked for.
    #[error(
        "no adapter matches {wanted}; present: {present}: install a driver (Debian, Ubuntu: apt-get \
             install mesa-vulkan-drivers libvulkan1), or change {field}"
    )]
    NoAdapter {
        /// What was asked for.
        wanted: String,
        /// Adapters that are there.
        present: String,
        /// The option or variable that asked.
        field: &'static str,
    },
    /// The adapter refused to open a device.
    #[error("{adapter} did not open a device: {message}")]
    DeviceRequest {
        /// Adapter name.
        adapter: String,
        /// The driver's words.
        message: String,
    },
    /// The device found a call invalid.
    #[error("the device refused {what}: {message}")]
    Device {
        /// What was being done.
        what: String,
        /// The device's words.
        message: String,
    },
    /// The device has no memory left.
    #[error("the device is out of memory for {what}: {message}")]
    OutOfMemory {
        /// What was being done.
        what: String,
        /// The device's words.
        message: String,
    },
    /// The device is gone; its buffers with it.
    #[error("the device is lost ({message}): open a new Gpu and upload the tensors again")]
    DeviceLost {
        /// The device's words.
        message: String,
    },

    // --- shaders ---
    /// A shader's source does not accept what the dispatcher (or `shader --set`) wants of it.
    #[error("shaders/{file}:{line}: {message}")]
    Shader {
        /// File in `shaders/`.
        file: String,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },

    // --- files ---
    /// A file of a case or of a cache does not say what it must.
    #[error("{path}: {field}: {message}")]
    CaseFile {
        /// File.
        path: String,
        /// Field or tensor in it.
        field: String,
        /// What is wrong and what to do.
        message: String,
    },

    // --- model configurations ---
    /// A configuration is too large to be one.
    #[error(
        "config.json is {}, but may have at most {bound} bytes: pass the model's config.json, not its weights",
        .bytes.map_or_else(|| "longer than it says".to_owned(), |bytes| format!("{bytes} bytes"))
    )]
    ConfigTooLarge {
        /// Its size, if known.
        bytes: Option<u64>,
        /// The most allowed.
        bound: u64,
    },
    /// A configuration cannot be read from disk.
    #[error("{path} cannot be read ({reason}): pass the path of a config.json or of its folder")]
    ConfigRead {
        /// The path given.
        path: String,
        /// The system's reason.
        reason: String,
    },
    /// A configuration is not JSON.
    #[error("config.json is not JSON at line {line}, column {column} ({reason}): repair the file")]
    ConfigSyntax {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// The parser's reason.
        reason: String,
    },
    /// A field of a configuration has a value outside its bounds.
    #[error("config.json: {field} is {value}, but must be {bound}: {remedy}")]
    ConfigField {
        /// The field, with the objects it lies in.
        field: String,
        /// The value given.
        value: String,
        /// What it must be.
        bound: String,
        /// What to do.
        remedy: String,
    },
    /// A configuration is of a family that is not known.
    #[error(
        "config.json: model_type is {model_type:?}, which is not known; the nearest known family is {nearest}: \
         set model_type to a family of docs/models.md if its attention is the same"
    )]
    UnknownFamily {
        /// The name given.
        model_type: String,
        /// The known name nearest to it.
        nearest: &'static str,
    },
    /// A configuration asks for something of its family that is not supported.
    #[error(
        "config.json: model_type {family} with {field} = {value} is not supported ({reason}); the nearest known \
         family is {nearest}: set model_type to it only if the attention is the same"
    )]
    UnsupportedModel {
        /// The family.
        family: String,
        /// The field, with the objects it lies in.
        field: String,
        /// The value given.
        value: String,
        /// Why not.
        reason: String,
        /// The known name nearest to the family's.
        nearest: &'static str,
    },
    /// A size needs more than 64 bits.
    #[error("{what} needs more than 2^64 bytes: lower tokens or batch")]
    MemoryOverflow {
        /// What was being sized.
        what: &'static str,
    },
    /// A runtime has no published rule for a design or storage.
    #[error("runtime {runtime} has no published rule for {what}: leave runtime out, or choose another kv")]
    NoRuntimeRule {
        /// The runtime.
        runtime: &'static str,
        /// The design or storage.
        what: String,
    },
}
