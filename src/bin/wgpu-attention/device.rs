//! Options that choose an adapter, and what several commands say of it.

use std::error::Error as StdError;
use std::fmt::Write;

use wgpu_attention::{Backend, DType, Error, Gpu, cases};

/// Which adapter to use.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct DeviceArgs {
    /// First adapter whose name contains this
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Adapter by its number in `info`
    #[arg(long, value_name = "N", conflicts_with = "adapter")]
    index: Option<usize>,
    /// Only adapters of one backend
    #[arg(long, value_enum)]
    backend: Option<BackendName>,
    /// Only software adapters
    #[arg(long)]
    software: bool,
    /// Only what every browser grants
    #[arg(long, help = "WebGPU's default limits and no optional feature")]
    portable: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum BackendName {
    Vulkan,
    Metal,
    Dx12,
}

/// Storage of queries, keys and values.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Storage {
    F32,
    F16,
    Bf16,
}

impl From<Storage> for DType {
    fn from(storage: Storage) -> Self {
        match storage {
            Storage::F32 => Self::F32,
            Storage::F16 => Self::F16,
            Storage::Bf16 => Self::Bf16,
        }
    }
}

impl DeviceArgs {
    /// Opens the device.
    pub(crate) fn open(&self) -> wgpu_attention::Result<Gpu> {
        let mut builder = Gpu::builder();
        if let Some(name) = &self.adapter {
            builder = builder.adapter(name);
        }
        if let Some(index) = self.index {
            builder = builder.index(index);
        }
        if let Some(backend) = self.backend {
            builder = builder.backend(match backend {
                BackendName::Vulkan => Backend::Vulkan,
                BackendName::Metal => Backend::Metal,
                BackendName::Dx12 => Backend::Dx12,
            });
        }
        if self.software {
            builder = builder.software();
        }
        if self.portable {
            builder = builder.portable();
        }
        builder.build()
    }

    /// The options again, as a shell takes them.
    pub(crate) fn again(&self) -> String {
        let mut text = String::new();
        if let Some(name) = &self.adapter {
            text.push_str(" --adapter ");
            text.push_str(&quoted(name));
        }
        if let Some(index) = self.index {
            // writing to a String cannot fail
            let _ = write!(text, " --index {index}");
        }
        text.push_str(match self.backend {
            Some(BackendName::Vulkan) => " --backend vulkan",
            Some(BackendName::Metal) => " --backend metal",
            Some(BackendName::Dx12) => " --backend dx12",
            None => "",
        });
        for (set, option) in [(self.software, " --software"), (self.portable, " --portable")] {
            if set {
                text.push_str(option);
            }
        }
        text
    }
}

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:\\".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Mesa's device chooser asks the desktop which GPU it draws with, and prints an error where there is none:
/// in containers and on servers.
pub(crate) fn spare_the_desktop() {
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        #[expect(unsafe_code, reason = "no other thread runs yet")]
        unsafe {
            std::env::set_var("NODEVICE_SELECT", "1");
        }
    }
}

/// Refuses a kernel that no operator has; a misspelt name would read as one that does not fit.
pub(crate) fn known_kernel(name: Option<&str>) -> Result<(), String> {
    let known = cases::paths();
    match name {
        Some(name) if !known.contains(&name) => {
            Err(format!("--kernel is {name:?}, but there are only {}", known.join(", ")))
        }
        _ => Ok(()),
    }
}

/// The message, with an adapter asked for by the options' names.
pub(crate) fn as_options(error: &(dyn StdError + 'static)) -> String {
    match error.downcast_ref() {
        Some(Error::NoAdapter { present, .. }) if present == "none" => "no adapter found".into(),
        Some(Error::NoAdapter { wanted, present, .. }) => {
            format!("no adapter matches {wanted}; present: {present}")
        }
        _ => error.to_string(),
    }
}

/// What to do about a missing adapter.
pub(crate) fn hint(error: &(dyn StdError + 'static)) -> Option<&'static str> {
    match error.downcast_ref()? {
        Error::NoAdapter { present, .. } if present == "none" => Some(INSTALL),
        Error::NoAdapter { .. } => Some("`wgpu-attention info` lists the adapters with their numbers"),
        _ => None,
    }
}

/// How to get a driver; the software one runs on any processor.
pub(crate) const INSTALL: &str = if cfg!(windows) {
    "install the maker's driver for your GPU; Windows 10 and later bring a software adapter for Direct3D 12"
} else if cfg!(target_os = "macos") {
    "Metal needs macOS 10.15 or later, outside of virtual machines without a GPU"
} else {
    "install a Vulkan driver; this one runs on any processor, no GPU needed:\n  \
     Debian, Ubuntu   apt-get install mesa-vulkan-drivers libvulkan1\n  \
     Fedora           dnf install mesa-vulkan-drivers vulkan-loader\n  \
     Arch             pacman -S vulkan-swrast vulkan-icd-loader\n  \
     Alpine           apk add mesa-vulkan-swrast vulkan-loader\n\
     for a GPU, its maker's driver; WGPU_BACKEND, if set, must allow vulkan"
};

/// `NAME (kind, backend; driver)`
pub(crate) fn describe(gpu: &Gpu) -> String {
    format!("{} ({}; {})", gpu.name(), gpu.kind(), gpu.driver())
}
