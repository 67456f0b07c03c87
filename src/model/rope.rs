//! Rotary positions of a layer: base, layout, share of the width, scaling.

use std::sync::Arc;

/// Which dimensions form a rotated pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeLayout {
    /// Dimension i turns with dimension i + half.
    Half,
    /// Dimension 2i turns with dimension 2i + 1.
    Interleaved,
}

/// How the frequencies are stretched beyond the trained context.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// Every frequency divided by `factor`.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// A base that grows with the length past `max_position`.
    Dynamic {
        /// Growth.
        factor: f64,
        /// Trained length.
        max_position: u32,
    },
    /// Slow frequencies divided, fast ones kept, a ramp between.
    Yarn {
        /// Divisor of the slow frequencies.
        factor: f64,
        /// Length before stretching.
        original: u32,
        /// Turns over the original length above which a frequency is kept.
        beta_fast: f64,
        /// Turns below which it is divided.
        beta_slow: f64,
        /// Whether the ramp's ends are rounded to whole dimensions.
        truncate: bool,
        /// Factor of cosine and sine, if the file gives one.
        attention_factor: Option<f64>,
        /// Numerator of the factor of cosine and sine.
        mscale: Option<f64>,
        /// Its denominator; also corrects the softmax scale of latent attention.
        mscale_all_dim: Option<f64>,
    },
    /// Llama 3's smooth ramp.
    Llama3 {
        /// Divisor of the slow frequencies.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Length before stretching.
        original: u32,
    },
    /// One divisor a pair, from two lists.
    LongRope {
        /// Divisors up to the original length.
        short: Arc<[f64]>,
        /// Divisors past it.
        long: Arc<[f64]>,
        /// Length before stretching.
        original: u32,
        /// Factor of cosine and sine.
        attention_factor: f64,
    },
    /// The first `rotated` dimensions turn at the frequencies of the whole width, the others not at all.
    Proportional {
        /// Dimensions that turn.
        rotated: u32,
        /// Every frequency divided by this.
        factor: f64,
    },
}

/// The rotation of one layer's queries and keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Dimensions that the pairs are formed from; the frequency exponent counts these.
    pub rotary_dim: u32,
    /// How pairs are formed.
    pub layout: RopeLayout,
    /// How frequencies are stretched.
    pub scaling: RopeScaling,
}

impl Rope {
    /// Plain rotation at base `theta` of the first `rotary_dim` dimensions.
    #[must_use]
    pub fn new(theta: f64, rotary_dim: u32, layout: RopeLayout) -> Self {
        Self { theta, rotary_dim, layout, scaling: RopeScaling::Default }
    }

    /// Radians that each pair turns from one position to the next, in a sequence of `length` tokens.
    ///
    /// The length matters to dynamic scaling and to `longrope` alone.
    #[must_use]
    pub fn inverse_frequencies(&self, length: u64) -> Vec<f64> {
        let d = f64::from(self.rotary_dim);
        let plain = |theta: f64, i: u32| theta.powf(-2.0 * f64::from(i) / d);
        let each = |f: &dyn Fn(u32) -> f64| (0..self.rotary_dim / 2).map(f).collect();
        match &self.scaling {
            RopeScaling::Default => each(&|i| plain(self.theta, i)),
            RopeScaling::Linear { factor } => each(&|i| plain(self.theta, i) / factor),
            RopeScaling::Dynamic { factor, max_position } => {
                let longest = f64::from(*max_position);
                let length = (length as f64).max(longest);
                let grown = factor * length / longest - (factor - 1.0);
                let theta = self.theta * grown.powf(d / (d - 2.0));
                each(&|i| plain(theta, i))
            }
            RopeScaling::Llama3 { factor, low_freq_factor: low, high_freq_factor: high, original } => {
                let original = f64::from(*original);
                each(&|i| {
                    let inverse = plain(self.theta, i);
                    let wavelength = std::f64::consts::TAU / inverse;
                    if wavelength < original / high {
                        inverse
                    } else if wavelength > original / low {
                        inverse / factor
                    } else {
                        let share = (original / wavelength - low) / (high - low);
                        inverse * (1.0 - share) / factor + inverse * share
                    }
                })
            }
            RopeScaling::Yarn { factor, original, beta_fast, beta_slow, truncate, .. } => {
                let [low, high] = self.yarn_ramp(*original, [*beta_fast, *beta_slow], *truncate);
                each(&|i| {
                    let inverse = plain(self.theta, i);
                    let slow = ((f64::from(i) - low) / (high - low)).clamp(0.0, 1.0);
                    inverse * (1.0 - slow) + inverse / factor * slow
                })
            }
            RopeScaling::LongRope { short, long, .. } => {
                let list = if self.scaling.uses_long(length) { long } else { short };
                each(&|i| plain(self.theta, i) / list.get(i as usize).copied().unwrap_or(1.0))
            }
            RopeScaling::Proportional { rotated, factor } => {
                each(&|i| if 2 * i < *rotated { plain(self.theta, i) / factor } else { 0.0 })
            }
        }
    }

    /// Pairs between which `YaRN`'s frequencies go from kept to divided.
    fn yarn_ramp(&self, original: u32, betas: [f64; 2], truncate: bool) -> [f64; 2] {
        let d = f64::from(self.rotary_dim);
        let pair = |turns: f64| {
            d * (f64::from(original) / (turns * std::f64::consts::TAU)).ln() / (2.0 * self.theta.ln())
        };
        let [mut low, mut high] = betas.map(pair);
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let low = low.max(0.0);
        high = high.min(d - 1.0);
        if low == high {
            high += 0.001;
        }
        [low, high]
    }
}

impl RopeScaling {
    /// Factor of cosine and sine.
    #[must_use]
    pub fn attention_factor(&self) -> f64 {
        match self {
            Self::Yarn { attention_factor: Some(given), .. } => *given,
            Self::Yarn { factor, mscale, mscale_all_dim, .. } => match (mscale, mscale_all_dim) {
                (Some(m), Some(all)) if *m != 0.0 && *all != 0.0 => {
                    yarn_mscale(*factor, *m) / yarn_mscale(*factor, *all)
                }
                _ => yarn_mscale(*factor, 1.0),
            },
            Self::LongRope { attention_factor, .. } => *attention_factor,
            _ => 1.0,
        }
    }

    /// Factor that latent attention applies to its softmax scale: the squared correction for all dimensions.
    #[must_use]
    pub fn softmax_correction(&self) -> f64 {
        match self {
            Self::Yarn { factor, mscale_all_dim: Some(all), .. } if *all != 0.0 => {
                yarn_mscale(*factor, *all).powi(2)
            }
            _ => 1.0,
        }
    }

    /// Whether a sequence of `length` tokens uses the long list; keys cached under the other list do not mix.
    #[must_use]
    pub fn uses_long(&self, length: u64) -> bool {
        matches!(self, Self::LongRope { original, .. } if length > u64::from(*original))
    }
}

fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}
