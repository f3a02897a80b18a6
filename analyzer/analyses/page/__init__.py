"""Values of the pages, which renderers lay out."""
