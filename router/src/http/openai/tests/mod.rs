//! What requests ask of the shape of their answers.

mod forced;
mod shapes;
