"""Laws: properties of parts that ``lengthwise check`` and the package's own tests verify."""
