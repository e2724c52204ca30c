//! Why this process leaves its job: what Python says about it (`corro/_front/last_words.py`), for the other ranks and for
//! whoever started the process.

use corro_core::departure::Frame;
use corro_core::{Error, Exception, Reason};
use corro_transport::statements::EndReport;
use pyo3::prelude::*;

static END_REPORT: EndReport = EndReport::new();

/// The program is about to learn of this error. To be called before it does.
pub(crate) fn suffers(error: &Error) {
    END_REPORT.suffers(error);
}

/// This process joins a job, perhaps again.
pub(crate) fn begin() {
    END_REPORT.begin();
}

/// Why this process leaves, as far as it has said so; else it has called `shutdown`, perhaps while it dealt with `after`.
pub(crate) fn reason(after: Option<Raised>) -> Reason {
    END_REPORT.reason().unwrap_or_else(|| Reason::ShutDown { after: after.map(exception) })
}

/// A Python exception: its class, what it says, and where it was raised, last.
pub(crate) type Raised = (String, String, Vec<(String, u32, String)>);

fn exception((kind, message, frames): Raised) -> Exception {
    let frame = |(file, line, function)| Frame { file, line, function };
    Exception::new(&kind, &message, frames.into_iter().map(frame).collect())
}

/// From now on this process speaks for itself, and none of its children for it.
#[pyfunction]
pub(crate) fn open_statements() {
    END_REPORT.open();
}

/// The program comes to its end, by an exception that nobody caught or in another way. `texts` are what the exception and
/// those behind it say.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "extracted from a Python list")]
pub(crate) fn leaving(raised: Option<Raised>, uncaught: bool, code: Option<i32>, texts: Vec<String>) {
    let reason = match raised.map(exception) {
        Some(exception) if uncaught => Reason::Raised(exception),
        after => Reason::Ended { code, after },
    };
    END_REPORT.leaves(reason, &texts);
}

/// An exception has ended a thread of this process, which goes on.
#[pyfunction]
pub(crate) fn thread_raised(raised: Raised) {
    END_REPORT.thread_raised(exception(raised));
}
