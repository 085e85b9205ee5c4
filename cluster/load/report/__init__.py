"""The figures of a load: arithmetic, text, a page, comparisons, and conditions on them."""
