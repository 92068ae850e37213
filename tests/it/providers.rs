//! Vectors and refusals for every provider file.
