//! What a member brings to a batch.

use corro_core::{DType, Error, Result, Shape};

use crate::memory::Memory;
use crate::outcome::Outcome;

/// What this member brings to an agreed tensor. By default nothing: one that has joined.
#[derive(Debug, Default)]
pub struct Tensor {
    /// What it brings, if that is not in the result's place already.
    pub input: Option<Memory>,
    /// Where the result goes.
    pub output: Output,
    /// Whether the factor that comes first was applied: a batch may be withdrawn and run again.
    pub prescaled: bool,
    /// Why this member can't have the result, although all take part.
    pub refused: Option<Box<Error>>,
    /// What was asked for where the place in `output` was made here. A batch that was withdrawn may come again with a result
    /// of another size, if others bring more or fewer rows; it needs another place then.
    asked: Option<Output>,
}

/// Makes room for a result of this shape. May be called again, if the result turns out to have another one: what it gave
/// before is of no use then.
pub type Allocate = Box<dyn FnMut(&Shape) -> Result<Memory> + Send>;

/// Where a result goes.
#[derive(Default)]
pub enum Output {
    /// Into this memory. If there is no input, it also holds what this rank brings. If the result turns out to have another
    /// size, the tensor fails on all ranks.
    InPlace(Memory),
    /// Into what this gives, called with the result's shape once that is known. May run on any thread. If it fails, or gives
    /// a place of another size, this rank's ticket fails; the others have their results.
    Allocate(Allocate),
    /// Into memory of the engine's own; or there is none.
    #[default]
    None,
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InPlace(memory) => write!(f, "InPlace({memory:?})"),
            Self::Allocate(_) => f.write_str("Allocate"),
            Self::None => f.write_str("None"),
        }
    }
}

impl Tensor {
    /// One that nothing was done with yet.
    pub fn new(input: Option<Memory>, output: Output) -> Self {
        Self { input, output, prescaled: false, refused: None, asked: None }
    }

    /// Whether any of its memory is a GPU's.
    pub fn is_on_device(&self) -> bool {
        let place = if let Output::InPlace(memory) = &self.output { Some(memory) } else { None };
        self.input.iter().chain(place).any(|memory| memory.device().is_some())
    }

    /// The GPU that has its memory.
    pub fn device(&self) -> Option<usize> {
        let place = if let Output::InPlace(memory) = &self.output { Some(memory) } else { None };
        self.input.iter().chain(place).find_map(|memory| Some(memory.device()?.device()))
    }

    /// Makes a place for the result, if none was given: one of the plane's `own`, of so many bytes. A given one of the
    /// wrong size, or that the plane finds of no use, is replaced by such a one, and the ticket will fail.
    #[inline]
    pub fn allocate(
        &mut self,
        shape: &Shape,
        dtype: DType,
        of_use: impl Fn(&Memory) -> Result<()>,
        own: impl FnOnce(usize) -> Result<Memory>,
    ) -> Result<()> {
        let bytes = shape.bytes(dtype)?;
        // Nearly always all is well, and the place stays where it is: moving it takes longer than looking at it.
        if matches!(&self.output, Output::InPlace(memory) if memory.len() == bytes && of_use(memory).is_ok()) {
            return Ok(());
        }
        let wanted = match std::mem::take(&mut self.output) {
            Output::InPlace(memory) if memory.len() != bytes => self.asked.take().unwrap_or(Output::InPlace(memory)),
            other => other,
        };
        let given = match wanted {
            Output::InPlace(memory) => Ok(memory),
            Output::Allocate(mut allocate) => {
                let given = allocate(shape);
                self.asked = Some(Output::Allocate(allocate));
                given
            }
            Output::None => {
                self.asked = Some(Output::None);
                self.output = Output::InPlace(own(bytes)?);
                return Ok(());
            }
        };
        let checked = given.and_then(|memory| {
            let len = memory.len();
            let wrong = || Error::Usage(format!("a result of {bytes} bytes was given a place of {len}"));
            if len == bytes { of_use(&memory).map(|()| memory) } else { Err(wrong()) }
        });
        self.output = Output::InPlace(match checked {
            Ok(memory) => memory,
            Err(error) => {
                self.refused.get_or_insert(Box::new(error));
                own(bytes)?
            }
        });
        Ok(())
    }

    /// The place that was made for the result.
    #[inline]
    pub fn place(&mut self) -> Result<&mut Memory> {
        match &mut self.output {
            Output::InPlace(memory) => Ok(memory),
            _ => Err(no_memory()),
        }
    }

    /// What this member brings, and the place of the result.
    #[inline]
    pub fn both(&mut self) -> Result<(&Memory, &mut Memory)> {
        match self {
            Self { input: Some(input), output: Output::InPlace(place), .. } => Ok((input, place)),
            _ => Err(no_memory()),
        }
    }

    /// The batch has run: what became of this tensor.
    pub fn outcome(&mut self, shape: Shape) -> Result<Outcome> {
        // Whoever is told of the result may want to have it back.
        self.input = None;
        if let Some(error) = self.refused.take() {
            return Err(*error);
        }
        let output = match std::mem::take(&mut self.output) {
            Output::InPlace(memory) => Some(memory),
            _ => None,
        };
        Ok(Outcome { output, shape, ..Outcome::default() })
    }
}

#[cold]
fn no_memory() -> Error {
    Error::Bug("a tensor without its memory".into())
}
