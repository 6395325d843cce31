"""Self-contained HTML pages: one file each, with no network access.

    models     export a trained model as data for the page's scripts
    document   assemble scripts, styles and data into one file
    viewer     the page that runs a model loop by loop; its example problems, known failures among them

``js`` holds the scripts: the model's forward pass in plain JavaScript, and the drawing code.
"""
