//! How an allreduce may send fewer bytes between hosts: a method and its numbers, as data.
//!
//! A [`Compression`] travels in the request, so that ranks agree on it as on everything else about a tensor. It is written
//! as users write it: `int8 block=256 rounding=stochastic`. This module knows what may be asked for; `corro-compress` does
//! it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// A number of a setting. Compared by its bits, so that a request can be hashed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Number(u64);

impl Number {
    /// This number.
    pub fn new(value: f64) -> Self {
        Self(value.to_bits())
    }

    /// As a number.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.get(), f)
    }
}

/// What becomes of the values on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Method {
    /// 16-bit floats, summed in 32 bits.
    Half {
        /// bfloat16 instead of float16.
        brain: bool,
    },
    /// Small integers with a scale for each block.
    Integers {
        /// 8 or 4.
        bits: u32,
        /// Values that share a scale.
        block: u32,
        /// Up or down by chance, instead of to the nearest.
        stochastic: bool,
        /// Whether peaks are spread out by a Hadamard transform first.
        rotate: bool,
    },
    /// 8-bit floats with a scale for each block.
    Float8 {
        /// Values that share a scale.
        block: u32,
        /// Up or down by chance, instead of to the nearest.
        stochastic: bool,
    },
    /// The sign, and the mean magnitude of each block.
    OneBit {
        /// Values that share a scale.
        block: u32,
    },
    /// The sign that most ranks have.
    Majority,
    /// Integers by chance, with the block's norm as scale.
    Qsgd {
        /// 8 or 4.
        bits: u32,
        /// Values that share a scale.
        block: u32,
    },
    /// -1, 0 or 1 by chance, times the block's largest value.
    TernGrad {
        /// Values that share a scale.
        block: u32,
    },
    /// The largest values, of each rank its own.
    TopK {
        /// Which part of all values.
        density: Number,
    },
    /// The largest values of what momentum has gathered.
    Dgc {
        /// Which part of all values.
        density: Number,
        /// The momentum, which the optimizer then must not have.
        momentum: Number,
        /// Steps in which the density goes down from a quarter.
        warmup: u32,
        /// The norm of a tensor to which gradients are clipped, divided by the root of the ranks; 0: not at all.
        clip: Number,
    },
    /// Values at random places, the same for all ranks.
    RandomK {
        /// Which part of all values.
        density: Number,
    },
    /// A matrix as the product of two narrow ones.
    PowerSgd {
        /// Columns of those.
        rank: u32,
        /// Steps before it begins.
        start: u32,
        /// What is not made smaller by this factor at least goes as it is.
        min_rate: Number,
    },
    /// The largest of what has changed since it was last sent.
    Ef21 {
        /// Which part of all values.
        density: Number,
    },
}

/// What an allreduce does to send fewer bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Compression {
    /// What becomes of the values.
    pub method: Method,
    /// Whether what the code does not say is kept, and added the next time (error feedback).
    pub feedback: bool,
    /// Whether also ranks of one host compress what they tell each other. For tests: bytes are cheap there.
    pub inside: bool,
    /// Where random numbers begin.
    pub seed: u64,
}

/// The names of all methods, as users write them.
pub const METHODS: [&str; 14] = [
    "fp16", "bf16", "int8", "int4", "fp8", "onebit", "sign", "qsgd", "terngrad", "topk", "dgc", "randomk", "powersgd",
    "ef21",
];

/// The largest block, and the largest rank of PowerSGD: more is a mistake.
const LARGEST: u32 = 1 << 20;

impl Compression {
    /// An error if it can't be done, or would not do what its user hopes for.
    pub fn check(&self) -> Result<()> {
        let wrong = |why: String| Err(Error::Usage(format!("compression {self}: {why}")));
        let block = self.block().unwrap_or(32);
        if block == 0 || block > LARGEST || !block.is_multiple_of(32) {
            return wrong(format!("a block must be a multiple of 32 values, up to {LARGEST}"));
        }
        match self.method {
            Method::Integers { bits, block, rotate, .. } => {
                if bits != 8 && bits != 4 {
                    return wrong(format!("integers have 8 or 4 bits, not {bits}"));
                }
                if rotate && !block.is_power_of_two() {
                    return wrong("a rotation needs a block that is a power of two".into());
                }
            }
            Method::Qsgd { bits, .. } if bits != 8 && bits != 4 => {
                return wrong(format!("integers have 8 or 4 bits, not {bits}"));
            }
            Method::TopK { density } | Method::RandomK { density } | Method::Ef21 { density } => {
                check_density(self, density)?;
            }
            Method::Dgc { density, momentum, clip, .. } => {
                check_density(self, density)?;
                if !(0.0..1.0).contains(&momentum.get()) {
                    return wrong("momentum must be at least 0 and below 1".into());
                }
                if !(clip.get() >= 0.0 && clip.get().is_finite()) {
                    return wrong("clip must be a number of at least 0".into());
                }
            }
            Method::PowerSgd { rank, min_rate, .. } => {
                if rank == 0 || rank > LARGEST {
                    return wrong("rank must be at least 1".into());
                }
                if !(min_rate.get() >= 1.0 && min_rate.get().is_finite()) {
                    return wrong("min_rate must be at least 1".into());
                }
            }
            _ => {}
        }
        self.check_feedback()
    }

    /// Error feedback makes things right only where a code leaves less than there was; else what is left grows from step to
    /// step. Rounding to the nearest always does. By chance the expected rest of a block of d values with steps of 1/L of
    /// its largest (or its norm) is at most d / 4L^2 of what was there.
    fn check_feedback(&self) -> Result<()> {
        let wrong = |why: &str| Err(Error::Usage(format!("compression {self}: {why}")));
        let grows = |bits: u32, block: u32| {
            let top = (1u64 << (bits - 1)) - 1;
            u64::from(block) >= 4 * top * top
        };
        match self.method {
            Method::Integers { bits, block, stochastic: true, .. } | Method::Qsgd { bits, block }
                if self.feedback && grows(bits, block) =>
            {
                wrong(
                    "so few bits with random rounding in blocks this long would let feedback grow without bound; use shorter blocks, rounding=nearest, or feedback=no",
                )
            }
            Method::TernGrad { .. } if self.feedback => {
                wrong("its rounding leaves more than there was, so feedback would grow without bound; use feedback=no")
            }
            Method::Majority if self.feedback => {
                wrong("a majority vote has no magnitude, so there is nothing to keep as feedback; use onebit")
            }
            Method::Dgc { .. } | Method::Ef21 { .. } if !self.feedback => wrong("it is made of feedback; use topk"),
            _ => Ok(()),
        }
    }

    /// Whether it is known to stray for ever, since what it leaves out is the same every time and nothing makes up for it.
    pub fn is_biased(&self) -> bool {
        let leaves_out = matches!(
            self.method,
            Method::OneBit { .. } | Method::Majority | Method::TopK { .. } | Method::PowerSgd { .. }
        );
        leaves_out && !self.feedback
    }

    /// Values that share a scale, where they do.
    pub fn block(&self) -> Option<u32> {
        match self.method {
            Method::Integers { block, .. }
            | Method::Float8 { block, .. }
            | Method::OneBit { block }
            | Method::Qsgd { block, .. }
            | Method::TernGrad { block } => Some(block),
            _ => None,
        }
    }

    /// Its name, as users write it.
    pub fn name(&self) -> &'static str {
        match self.method {
            Method::Half { brain: false } => "fp16",
            Method::Half { brain: true } => "bf16",
            Method::Integers { bits: 4, .. } => "int4",
            Method::Integers { .. } => "int8",
            Method::Float8 { .. } => "fp8",
            Method::OneBit { .. } => "onebit",
            Method::Majority => "sign",
            Method::Qsgd { .. } => "qsgd",
            Method::TernGrad { .. } => "terngrad",
            Method::TopK { .. } => "topk",
            Method::Dgc { .. } => "dgc",
            Method::RandomK { .. } => "randomk",
            Method::PowerSgd { .. } => "powersgd",
            Method::Ef21 { .. } => "ef21",
        }
    }
}

fn check_density(compression: &Compression, density: Number) -> Result<()> {
    if density.get() > 0.0 && density.get() <= 1.0 {
        return Ok(());
    }
    Err(Error::Usage(format!("compression {compression}: density must be above 0 and at most 1")))
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let rounding = |stochastic| if stochastic { "stochastic" } else { "nearest" };
        match self.method {
            Method::Half { .. } | Method::Majority => {}
            Method::Integers { block, stochastic, rotate, .. } => {
                write!(f, " block={block} rounding={}", rounding(stochastic))?;
                if rotate {
                    f.write_str(" rotate=yes")?;
                }
            }
            Method::Float8 { block, stochastic } => write!(f, " block={block} rounding={}", rounding(stochastic))?,
            Method::OneBit { block } | Method::TernGrad { block } => write!(f, " block={block}")?,
            Method::Qsgd { bits, block } => write!(f, " bits={bits} block={block}")?,
            Method::TopK { density } | Method::RandomK { density } | Method::Ef21 { density } => {
                write!(f, " density={density:?}")?;
            }
            Method::Dgc { density, momentum, warmup, clip } => {
                write!(f, " density={density:?} momentum={momentum:?} warmup={warmup} clip={clip:?}")?;
            }
            Method::PowerSgd { rank, start, min_rate } => {
                write!(f, " rank={rank} start={start} min_rate={min_rate:?}")?;
            }
        }
        write!(f, " feedback={}", if self.feedback { "yes" } else { "no" })?;
        if self.inside {
            f.write_str(" inside=yes")?;
        }
        if self.seed != 0 {
            write!(f, " seed={}", self.seed)?;
        }
        Ok(())
    }
}

impl FromStr for Compression {
    type Err = Error;

    /// A method's name, and settings as `key=value`, with spaces between them.
    fn from_str(text: &str) -> Result<Self> {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap_or_default();
        let mut settings = Settings { text, left: Vec::new() };
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                return Err(settings.wrong(&format!("{word} is not of the form key=value")));
            };
            if settings.left.iter().any(|(known, _)| *known == key) {
                return Err(settings.wrong(&format!("{key} comes twice")));
            }
            settings.left.push((key, value));
        }
        let (method, feedback) = settings.method(name)?;
        let compression = Self {
            method,
            feedback: settings.truth("feedback", feedback)?,
            inside: settings.truth("inside", false)?,
            seed: settings.number("seed", 0)?,
        };
        if let Some((key, _)) = settings.left.first() {
            return Err(settings.wrong(&format!("{name} has no setting called {key}")));
        }
        compression.check()?;
        Ok(compression)
    }
}

/// What was written, of which settings are taken one by one.
struct Settings<'a> {
    text: &'a str,
    left: Vec<(&'a str, &'a str)>,
}

impl<'a> Settings<'a> {
    /// The method, and whether it has feedback unless its user says otherwise.
    fn method(&mut self, name: &str) -> Result<(Method, bool)> {
        Ok(match name {
            "fp16" => (Method::Half { brain: false }, false),
            "bf16" => (Method::Half { brain: true }, false),
            "int8" | "int4" => {
                let bits = if name == "int8" { 8 } else { 4 };
                let block = self.number("block", if bits == 8 { 256 } else { 64 })?;
                let stochastic = self.stochastic()?;
                (Method::Integers { bits, block, stochastic, rotate: self.truth("rotate", false)? }, true)
            }
            "fp8" => (Method::Float8 { block: self.number("block", 256)?, stochastic: self.stochastic()? }, true),
            "onebit" => (Method::OneBit { block: self.number("block", 2048)? }, true),
            "sign" => (Method::Majority, false),
            "qsgd" => (Method::Qsgd { bits: self.number("bits", 8)?, block: self.number("block", 512)? }, false),
            "terngrad" => (Method::TernGrad { block: self.number("block", 512)? }, false),
            "topk" => (Method::TopK { density: self.real("density", 0.01)? }, true),
            "dgc" => {
                let density = self.real("density", 0.001)?;
                let momentum = self.real("momentum", 0.9)?;
                let (warmup, clip) = (self.number("warmup", 0)?, self.real("clip", 0.0)?);
                (Method::Dgc { density, momentum, warmup, clip }, true)
            }
            "randomk" => (Method::RandomK { density: self.real("density", 0.01)? }, true),
            "powersgd" => {
                let (rank, start) = (self.number("rank", 4)?, self.number("start", 0)?);
                (Method::PowerSgd { rank, start, min_rate: self.real("min_rate", 2.0)? }, true)
            }
            "ef21" => (Method::Ef21 { density: self.real("density", 0.01)? }, true),
            _ => return Err(self.wrong(&format!("there is no such method; there are {}", METHODS.join(", ")))),
        })
    }

    fn take(&mut self, key: &str) -> Option<&'a str> {
        let at = self.left.iter().position(|(known, _)| *known == key)?;
        Some(self.left.remove(at).1)
    }

    fn number<T: FromStr>(&mut self, key: &str, usual: T) -> Result<T> {
        let Some(value) = self.take(key) else { return Ok(usual) };
        value
            .parse()
            .map_err(|_| self.wrong(&format!("{key} must be a whole number that is not too large, not {value}")))
    }

    fn real(&mut self, key: &str, usual: f64) -> Result<Number> {
        let Some(value) = self.take(key) else { return Ok(Number::new(usual)) };
        let number: Option<f64> = value.parse().ok().filter(|number: &f64| number.is_finite());
        number.map(Number::new).ok_or_else(|| self.wrong(&format!("{key} must be a number, not {value}")))
    }

    fn truth(&mut self, key: &str, usual: bool) -> Result<bool> {
        match self.take(key) {
            None => Ok(usual),
            Some("yes") => Ok(true),
            Some("no") => Ok(false),
            Some(other) => Err(self.wrong(&format!("{key} must be yes or no, not {other}"))),
        }
    }

    fn stochastic(&mut self) -> Result<bool> {
        match self.take("rounding") {
            None | Some("nearest") => Ok(false),
            Some("stochastic") => Ok(true),
            Some(other) => Err(self.wrong(&format!("rounding must be nearest or stochastic, not {other}"))),
        }
    }

    fn wrong(&self, why: &str) -> Error {
        Error::Usage(format!("compression {:?}: {why}", self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_read_as_it_is_written() {
        for name in METHODS {
            let compression: Compression = name.parse().unwrap();
            assert_eq!(compression.name(), name);
            assert_eq!(compression.to_string().parse::<Compression>().unwrap(), compression, "{compression}");
        }
        let written = "int8 block=64 rounding=stochastic rotate=yes feedback=no inside=yes seed=7";
        assert_eq!(written.parse::<Compression>().unwrap().to_string(), written);
        let written = "dgc density=0.01 momentum=0.5 warmup=100 clip=2 feedback=yes";
        assert_eq!(written.parse::<Compression>().unwrap().to_string(), written);
    }

    #[test]
    fn what_can_not_be_done_is_refused_with_a_reason() {
        for (text, fragment) in [
            ("", "there are fp16, bf16"),
            ("int9", "there are fp16, bf16"),
            ("int8 blok=3", "no setting called blok"),
            ("int8 block=100", "multiple of 32"),
            ("int8 block=0", "multiple of 32"),
            ("int8 block=x", "whole number"),
            ("int8 block", "key=value"),
            ("int8 seed=1 seed=2", "comes twice"),
            ("int8 rounding=up", "nearest or stochastic"),
            ("int8 block=96 rotate=yes", "power of two"),
            ("int4 rounding=stochastic block=256", "without bound"),
            ("terngrad feedback=yes", "without bound"),
            ("sign feedback=yes", "use onebit"),
            ("ef21 feedback=no", "use topk"),
            ("topk density=0", "density"),
            ("topk density=nan", "density must be a number"),
            ("randomk density=1.5", "density"),
            ("dgc momentum=1", "momentum"),
            ("powersgd rank=0", "rank"),
            ("powersgd min_rate=0.5", "min_rate"),
            ("qsgd bits=3", "8 or 4 bits"),
        ] {
            let error = text.parse::<Compression>().unwrap_err();
            assert!(matches!(&error, Error::Usage(why) if why.contains(fragment)), "{text}: {error}");
        }
        assert!("int4 rounding=stochastic".parse::<Compression>().is_ok(), "short blocks shrink");
        assert!("int8 rounding=stochastic".parse::<Compression>().is_ok());
    }
}
