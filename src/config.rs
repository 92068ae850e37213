//! The configuration file: sections, `Secret`, and the only reader of the environment.
