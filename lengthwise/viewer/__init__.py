"""Self-contained HTML pages: one file each, with no network access.

    document   assemble scripts, styles and data into one file
    viewer     the page that shows a model loop by loop, with its data, example problems and known failures
    report     the page of a study's curves, maps, score cards and tables

``js`` holds the scripts: the model's forward pass in plain JavaScript, and the drawing code.
"""
