"""Pages: one HTML file each, which holds all it shows and asks the network for nothing.

    models     a trained model as data that a page computes with
    offered    problems that a page offers, failures among them
    document   scripts, styles and data → one file
    viewer     the page on which models think, loop by loop

``js`` holds the scripts: the model's forward pass in plain JavaScript, and what draws it.
"""
