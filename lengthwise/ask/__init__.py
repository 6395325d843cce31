"""Measure a large language model behind an OpenAI-compatible endpoint on fresh problems of a task.

inquiry    Inquiry, draw_items(...) → Item  the configuration; problems as text
           score_replies(...)               rows like those of ``Score.row``
           InquiryRun                       the inquiry's folder; each reply is saved at once
client     Key                              the endpoint's key, which is never written to a file
           read_reply(text) → Row           a response's text and token counts
           collect_replies(...)             sends all prompts without a reply, several at a time
"""
