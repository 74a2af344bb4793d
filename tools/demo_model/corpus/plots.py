"""Story plots as data: each plot is a list of sentences in the grammar of ``grammar.expand``.

Slots: {hero} (``Pip``), {hero_is} (``a small fox named Pip``), {they}/{They}/{them}/{their}/{Their}, the same for the
friend with ``f_`` in front, {friend}, {trait}, {place}, {object}, {colour}, {food} and {food_one}.
"""

OPENINGS = (
    "Once upon a time, in {place}, there lived {hero_is}. {They} was very {trait}.",
    "Once upon a time there was {hero_is}. {They} lived in {place}[.| with {their} family.]",
    "Once upon a time, {hero_is} lived in {place}. Every [morning|day|evening], {they} [sang a little song|looked "
    "at the sky|went for a walk].",
    "There was once {hero_is} who lived in {place}. Everyone said that {hero} was {trait}.",
    "Long ago, in {place}, there lived {hero_is}. {They} loved {food} [more than anything|very much].",
    "One [sunny|rainy|windy|quiet|cold] [morning|day], {hero_is} [woke up early|looked out of the window] in {place}.",
    "In {place} lived {hero_is}. {They} had a {colour} {object} that {they} took everywhere.",
)

LOST = (
    "One day, {hero} [lost|could not find] {their} {colour} {object}.",
    "{They} looked [under the bed|behind the door|in the garden|near the old tree], but it was not there.",
    '"[Oh no|Oh dear]! Where is my {object}?" [cried|said] {hero}.',
    "Then {friend} [came by|heard {them} and came over].",
    '"[Do not worry|Do not be sad]," said {friend}. "[I will help you|We will look together]."',
    "They [looked and looked|searched all day], [up the hill and down again|from the gate to the river].",
    "At last, {friend} saw something {colour} [under a leaf|in the tall grass|on a branch|beside the well].",
    '"[There it is|Look, here it is]!" {f_they} [shouted|said with a smile].',
    "{hero} was [so happy|very glad] and [hugged {friend}|thanked {friend} again and again].",
    "From that day on, {hero} [kept the {object} safe|always put the {object} in the same place].",
)

SHARE = (
    "One day, {hero} [made|was given] a big plate of {food}.",
    "{They} wanted to eat it all alone, so {they} [hid behind a tree|closed the door].",
    "Soon {friend} [walked by|knocked softly]. {f_They} looked [tired|hungry|cold].",
    '"[Something smells good|What a lovely smell]," said {friend}. "[I have not eaten today|I am so hungry]."',
    "{hero} looked at the {food}, and then at {friend}.",
    '"[Come and sit with me|Please have some]," said {hero}. "[There is enough for two|It tastes better together]."',
    "They ate [slowly|together] and told each other [funny stories|jokes] until [the stars came out|the sun went "
    "down].",
    "The next day, {friend} came back with [a gift|a small surprise]: a {colour} {object}.",
    '"[This is for you|You were kind to me]," said {friend}.',
    "{hero} learned that [sharing makes everything sweeter|a shared meal makes a friend].",
)

STORM = (
    "One night, a great storm came [over the land|up from the west].",
    "The wind [howled|blew hard] and the rain [fell like a river|tapped on the roof].",
    "{hero} was [afraid|a little scared], but {they} heard a small voice outside.",
    '"[Help|Please help me]! I am lost," said the voice. It was {friend}.',
    "{hero} took [a lamp|a warm blanket|a deep breath] and went out into the dark.",
    '"[Take my hand|Hold on to me]!" {they} called. "[We will go home together|I know the way]."',
    "Step by step, they walked back [through the mud|against the wind].",
    "Inside it was warm, and they drank [hot tea|warm milk] and ate {food}.",
    'In the morning the sky was blue. "[You are very brave|You saved me]," said {friend}.',
    '"I was scared," said {hero}, "but [being brave means you help anyway|a friend is worth a little fear]."',
)

LEARN = (
    "{hero} wanted to learn how to [swim|sing|dance|paint|ride a bike|play the flute].",
    "The first time {they} tried, it went [badly|wrong], and everybody [laughed|looked away].",
    '"[I will never do it|It is too hard]," said {hero}, and a tear rolled down.',
    "{friend} sat down beside {them}.",
    '"[I fell ten times before I could do it|Nobody can do it the first time]," said {friend}. "[Try again '
    'tomorrow|Try a little every day]."',
    "So {hero} tried again the next day, and the day after that.",
    "[Slowly|Little by little], it became easier.",
    "On [the day of the fair|a bright Sunday|the last day of summer], {hero} showed everyone what {they} could do.",
    "They all [clapped and cheered|stood up and clapped].",
    "{hero} [smiled at {friend}|looked for {friend} in the crowd] and knew that [practice is a kind of magic|small "
    "steps go a long way].",
)

SECRET = (
    "One day, {hero} found a {colour} {object} [under an old tree|by the river|at the bottom of the garden].",
    "It was [shining in the sun|covered with dust], and when {they} touched it, it began to [hum|glow].",
    '"[Hello|Good day]," said the {object}. "You may make one wish."',
    "{hero} thought [for a long time|about it all day]. {They} could wish for gold, or for a house full of {food}.",
    "Then {they} remembered {friend}, who had been [ill|sad|alone] for a week.",
    '"I wish that {friend} will [be well|be happy] again," said {hero}.',
    "The {object} [shone like a star|rang softly] and was gone.",
    "When {hero} came home, {friend} was [standing at the door|dancing in the street] with a big smile.",
    '"[What a wonderful day|I feel so much better]!" said {friend}.',
    "{hero} never told anyone about the wish, but {they} [smiled every time {they} thought of it|was happy for a "
    "long, long time].",
)

QUARREL = (
    "{hero} and {friend} were best friends, but one day they both wanted the same {colour} {object}.",
    '"[It is mine|I saw it first]!" said {hero}. "[No, it is mine|No, I did]!" said {friend}.',
    "They pulled, and pulled, and the {object} [broke in two|fell into the river].",
    "They went home [without a word|angry and sad].",
    "That night, {hero} could not sleep. The house felt [too quiet|empty].",
    "In the morning, {they} [baked a {food_one}|picked some flowers] and walked to the house of {friend}.",
    '"[I am sorry|I was wrong]," said {hero}. "[You matter more than a thing|I would rather have a friend]."',
    '"I am sorry too," said {friend}. "[Let us mend it together|We can make a new one]."',
    "They worked all afternoon, and the new {object} was [even more beautiful|a bit crooked, but they loved it].",
    "And from then on, they took turns.",
)

JOURNEY = (
    "{hero} had always wanted to see [the sea|the mountains|the end of the river|the big city].",
    "So one morning {they} packed some {food} and {their} {colour} {object}, and set off.",
    "On the way, {they} met {friend}.",
    '"[Where are you going|May I ask where you are going]?" asked {friend}.',
    '"Far away," said {hero}. "[Do you want to come with me|Will you come too]?"',
    "They walked [over three hills|through a dark wood] and slept under the [stars|trees].",
    "When they were [lost|tired], they [sang a song|shared the {food}], and it was not so bad.",
    "After [three|four|five] days, they stood still and looked. It was [bigger and bluer|more beautiful] than they "
    "had ever dreamed.",
    '"[It was a long way|My feet hurt]," said {friend}, "but [it was worth it|I am glad we came]."',
    "When they came home, they had [many stories to tell|a friend for life], and that was the best thing of all.",
)

MOON = (
    "Every night, {hero} looked up at the moon and said good night.",
    "One night, the moon was gone.",
    '"Where is the moon?" {hero} asked {friend}.',
    '"[Perhaps it is hiding|Maybe it is tired]," said {friend}. "Let us go and look."',
    "They climbed [the highest hill|the tallest tree], and they took a {object} with them.",
    "There they found a cloud, and the cloud was [crying|very big and very sad].",
    '"[I only wanted company|I was lonely]," said the cloud, "so I sat down in front of the moon."',
    '"You can talk to us," said {hero}. "We will wave to you every [day|evening]."',
    "The cloud smiled and [moved aside|floated away], and the moon shone [on the roofs|on the hills] again.",
    "Since then, {hero} says good night to the moon, and to the clouds as well.",
)

GARDEN = (
    "In spring, {hero} planted a tiny seed [behind the house|in a {colour} pot].",
    "{They} gave it water every day and [sang to it|told it stories].",
    "But after a week, nothing had happened.",
    '"[It will never grow|My seed is broken]," {they} said to {friend}.',
    '"[Be patient|Give it time]," said {friend}. "[Good things grow slowly|Under the ground, it is working hard]."',
    "So {hero} waited. The sun came, and the rain came.",
    "Then one morning, there was a [small green leaf|little green tip] in the earth.",
    "By summer, it had become a tall [sunflower|rose bush|apple tree], and [bees|birds] came from all around.",
    '"[You were right|Thank you for telling me to wait]," said {hero}.',
    "They sat in its shade and ate {food}, and {hero} learned that [patience makes things grow|waiting is a part "
    "of growing].",
)

HELPER = (
    "One day, a [big cart|small boat|heavy sack] was stuck [in the mud|on the bank].",
    "It belonged to {friend}, who [pulled and pushed|tried again and again], but it did not move.",
    'Many people passed by. "[I have no time|I am too busy]", they said.',
    "{hero} was the smallest of them all, but {they} stopped.",
    '"[Two are stronger than one|Let me help you]," said {hero}.',
    '"[You are so little|What can you do]?" asked {friend}.',
    "{hero} [found a long stick|put flat stones in front of it], and together they [counted to three|pulled as "
    "hard as they could].",
    "[Slowly|With a loud pop], it came free.",
    '"[You may be small|I was wrong about you]," said {friend}, "but [you have a big heart|you are very clever]."',
    "That evening they shared some {food}, and {hero} went home [proud|happy] and tired.",
)

PLOTS = {
    "lost": LOST,
    "share": SHARE,
    "storm": STORM,
    "learn": LEARN,
    "secret": SECRET,
    "quarrel": QUARREL,
    "journey": JOURNEY,
    "moon": MOON,
    "garden": GARDEN,
    "helper": HELPER,
}

MORALS = {
    "lost": "A good friend helps you look.",
    "share": "What you share comes back to you.",
    "storm": "Being brave means helping even when you are afraid.",
    "learn": "Practice makes hard things easy.",
    "secret": "The best wish is one for somebody else.",
    "quarrel": "A friend is worth more than a thing.",
    "journey": "The best part of a journey is who you share it with.",
    "moon": "A kind word can move a cloud.",
    "garden": "Good things take time.",
    "helper": "You are never too small to help.",
}

THEMES = {
    "lost": "something that was lost",
    "share": "sharing",
    "storm": "a storm",
    "learn": "learning something new",
    "secret": "a wish",
    "quarrel": "two friends who quarrel",
    "journey": "a journey",
    "moon": "the moon",
    "garden": "a garden",
    "helper": "helping others",
}
