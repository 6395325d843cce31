"""Laws of parts: properties that `check` and the package's own tests verify."""
