//! The clock of the pure parts: whoever drives them says what time it is.

/// Time since the machine was made.
pub type Time = std::time::Duration;
