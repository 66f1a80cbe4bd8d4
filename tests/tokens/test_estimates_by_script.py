"""Estimates of what is no prose in a common language, against exact counts by o200k: scripts, sequences, JSON in JSON.

Too low costs more than too high: what is estimated at less than a quarter is never corrected by a report.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import AsyncGenerator

import pytest

from chatstack import (
    ChatRequest,
    ChatStack,
    ChatStream,
    ChatUpdate,
    ContextWindowGuard,
    EstimatingCounter,
    Message,
    TokenizerCounter,
    Usage,
)
from chatstack.client.protocol import ProviderInfo

SCRIPTS = {
    "Amharic": (
        "ሰላም፣ ባለፈው ሳምንት የገዛሁትን ዕቃ እንዴት መመለስ እንደምችል ማወቅ እፈልጋለሁ። የጆሮ ማዳመጫው መሥራት አቁሟል፤ ገንዘቤ እንዲመለስልኝ እጠይቃለሁ።",
        "ቤተ መጻሕፍቱ ከመቶ ዓመት በፊት የተሠራ ሲሆን መጀመሪያ ባንክ ነበር። አሁን በየቅዳሜ ጠዋት በጎ ፈቃደኞች ለልጆች ተረት ያነባሉ።",
        "አዲስ አበባ የኢትዮጵያ ዋና ከተማ ናት። በከተማዋ ብዙ ዩኒቨርሲቲዎች፣ ሆስፒታሎችና ሙዚየሞች አሉ።",
    ),
    "Tigrinya": (
        "ሰላም፡ ኣብ ዝሓለፈ ሰሙን ዝዓደግኩዎ ኣቕሓ ብኸመይ ክመልሶ ከም ዝኽእል ክፈልጥ እደሊ።",
        "ኣስመራ ርእሰ ከተማ ኤርትራ እያ። ህዝባ ትግርኛን ዓረብን ካልእ ቋንቋታትን ይዛረብ።",
    ),
    "Lao": (
        "ສະບາຍດີ ຂ້ອຍຢາກຮູ້ວິທີສົ່ງຄືນສິນຄ້າທີ່ຊື້ເມື່ອສອງອາທິດກ່ອນ ຫູຟັງໃຊ້ບໍ່ໄດ້ແລ້ວ ຂ້ອຍຢາກໄດ້ເງິນຄືນ",
        "ຫໍສະໝຸດນີ້ສ້າງຂຶ້ນເມື່ອຮ້ອຍປີກ່ອນ ແລະ ໃນເມື່ອກ່ອນແມ່ນທະນາຄານ ດຽວນີ້ທຸກເຊົ້າວັນເສົາມີຄົນອ່ານນິທານໃຫ້ເດັກນ້ອຍຟັງ",
        "ວຽງຈັນແມ່ນນະຄອນຫຼວງຂອງປະເທດລາວ ຕັ້ງຢູ່ແຄມແມ່ນ້ຳຂອງ",
    ),
    "Dhivehi": (
        "މާލެއަކީ ދިވެހިރާއްޖޭގެ ވެރިރަށެވެ. މި ރަށުގައި ގިނަ މީހުން ދިރިއުޅެއެވެ.",
        "އަޅުގަނޑު ބޭނުންވަނީ މި މުދާ އަނބުރާ ދޭނެ ގޮތެއް އެނގެން.",
    ),
    "Inuktitut": ("ᐃᓄᐃᑦ ᓄᓇᖓᓐᓂ ᐅᖃᐅᓯᖅ ᐊᑐᖅᑕᐅᕙᒃᐳᖅ. ᓄᓇᕗᑦ ᑲᓇᑕᐅᑉ ᐃᓗᐊᓃᑦᑐᖅ.", "ᐃᖃᓗᐃᑦ ᓄᓇᕗᑦ ᒐᕙᒪᖓᑕ ᐃᓂᒋᔭᖓ ᐊᖏᓛᖅ."),
    "Cherokee": ("ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ ᎤᏩᏌ ᎠᏂᏣᎳᎩ ᎤᎾᏤᎵ. ᏂᎦᏓ ᎠᏂᏴᏫ ᏂᎨᎫᏓᎸᎾ ᎠᎴ ᎤᏂᏠᏱ ᎤᎾᏕᎿ ᏚᏳᎧᏛ ᎨᏒᎢ.",),
    "Tibetan": (
        "བོད་ཀྱི་རྒྱལ་ས་ལྷ་ས་ཡིན། དེ་ན་པོ་ཏ་ལའི་ཕོ་བྲང་ཡོད། མི་མང་པོས་ལོ་ལྟར་གནས་སྐོར་ལ་ཡོང་།",
        "དཔེ་མཛོད་ཁང་འདི་ལོ་བརྒྱའི་སྔོན་ལ་བརྒྱབ་པ་རེད། ད་ལྟ་གཟའ་སྤེན་པའི་ཞོགས་པར་བྱིས་པ་ཚོར་སྒྲུང་ཀློག་གི་ཡོད།",
    ),
    "Khmer": (
        "សួស្តី ខ្ញុំចង់ដឹងពីរបៀបប្រគល់ទំនិញដែលបានទិញកាលពីពីរសប្តាហ៍មុនវិញ។ កាសស្តាប់ត្រចៀកឈប់ដំណើរការហើយ។",
        "បណ្ណាល័យនេះត្រូវបានសាងសង់កាលពីមួយរយឆ្នាំមុន។ រៀងរាល់ព្រឹកថ្ងៃសៅរ៍ អ្នកស្ម័គ្រចិត្តអានរឿងឲ្យក្មេងៗស្តាប់។",
    ),
    "Sinhala": (
        "ආයුබෝවන්, සති දෙකකට පෙර මිලදී ගත් භාණ්ඩය ආපසු ලබා දෙන්නේ කෙසේදැයි දැන ගැනීමට කැමැත්තෙමි.",
        "මෙම පුස්තකාලය වසර සියයකට පෙර ඉදිකරන ලද අතර මුලින් එය බැංකුවක් විය. දැන් සෑම සෙනසුරාදා උදෑසනකම ළමයින්ට කතන්දර කියවයි.",
    ),
    "Burmese": ("မင်္ဂလာပါ၊ လွန်ခဲ့တဲ့ နှစ်ပတ်က ဝယ်ထားတဲ့ ပစ္စည်းကို ဘယ်လို ပြန်ပေးရမလဲ သိချင်ပါတယ်။", "ဒီစာကြည့်တိုက်ကို လွန်ခဲ့တဲ့ နှစ်တစ်ရာက ဆောက်ခဲ့ပါတယ်။"),
    "Odia": ("ଏହି ପାଠାଗାର ଶହେ ବର୍ଷ ପୂର୍ବେ ନିର୍ମିତ ହୋଇଥିଲା। ଏବେ ପ୍ରତି ଶନିବାର ସକାଳେ ସ୍ୱେଚ୍ଛାସେବୀମାନେ ପିଲାମାନଙ୍କୁ ଗପ ପଢ଼ନ୍ତି।",),
    "Punjabi": ("ਇਹ ਲਾਇਬ੍ਰੇਰੀ ਸੌ ਸਾਲ ਪਹਿਲਾਂ ਬਣਾਈ ਗਈ ਸੀ। ਹੁਣ ਹਰ ਸ਼ਨੀਵਾਰ ਸਵੇਰੇ ਵਲੰਟੀਅਰ ਬੱਚਿਆਂ ਨੂੰ ਕਹਾਣੀਆਂ ਪੜ੍ਹਦੇ ਹਨ।",),
    "N'Ko": ("ߒߞߏ ߦߋ߫ ߛߓߍߛߎ߲ ߠߋ߬ ߘߌ߫ ߡߍ߲ ߛߌ߲ߘߌ߫ ߘߊ߫ ߛߟߏߡߊߣߊ߫ ߞߊ߲ߕߍ߫ ߓߟߏ߫.",),
    "Gothic": ("𐌰𐍄𐍄𐌰 𐌿𐌽𐍃𐌰𐍂 𐌸𐌿 𐌹𐌽 𐌷𐌹𐌼𐌹𐌽𐌰𐌼, 𐍅𐌴𐌹𐌷𐌽𐌰𐌹 𐌽𐌰𐌼𐍉 𐌸𐌴𐌹𐌽.",),
    "Pulaar in Adlam": ("𞤀𞤣𞤤𞤢𞤥 𞤆𞤵𞤤𞤢𞤪",),
    "rare Chinese characters": ("他姓𠮷，住在𡈽𡌛村。𠮟𠀋𡑮𡢽𠮷",),
    "Ukrainian": (
        "Цю бібліотеку збудували сто років тому, і спочатку тут був банк. "
        "Тепер щосуботи вранці добровольці читають дітям казки.",
    ),
    "Mongolian": (
        "Энэ номын санг зуун жилийн өмнө барьсан бөгөөд анх банк байжээ. "
        "Одоо бямба гариг бүрийн өглөө хүүхдүүдэд үлгэр уншдаг.",
    ),
    "Kazakh": (
        "Бұл кітапхана жүз жыл бұрын салынған, бастапқыда банк болған. "
        "Қазір әр сенбі таңертең еріктілер балаларға ертегі оқиды.",
    ),
    "Hebrew": ("הספרייה הזאת נבנתה לפני מאה שנה, ובמקור הייתה בנק. היום מתנדבים קוראים סיפורים לילדים בכל שבת בבוקר.",),
    "Persian": (
        "این کتابخانه صد سال پیش ساخته شد و در اصل بانک بود. اکنون هر شنبه صبح داوطلبان برای کودکان داستان می‌خوانند.",
    ),
}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def drawn(alphabet: str, lines: int = 1, length: int = 60) -> str:
    generator = random.Random(11)
    return "\n".join("".join(generator.choices(alphabet, k=length)) for _ in range(lines))


def nested(depth: int) -> str:
    rows: object = [
        {"id": n, "name": f"Item {n}", "note": 'She said "ok"\nthen left', "price": n * 7.3} for n in range(40)
    ]
    for _ in range(depth):
        rows = {"result": json.dumps(rows)}
    return json.dumps(rows)


OTHERS: dict[str, tuple[str, float, float]] = {
    "Braille": ("⠠⠞⠓⠑ ⠇⠊⠃⠗⠁⠗⠽ ⠕⠏⠑⠝⠎ ⠁⠞ ⠝⠊⠝⠑ ⠁⠝⠙ ⠉⠇⠕⠎⠑⠎ ⠁⠞ ⠋⠊⠧⠑. " * 5, -0.1, 0.1),
    "bars": (drawn("▁▂▃▄▅▆▇█", length=500), -0.45, 0.1),
    "mathematics": ("∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β), ∑ᵢ₌₁ⁿ xᵢ² ≤ ∞\n" * 5, -0.35, 0.1),
    "mathematical letters": ("𝐀𝐁𝐂 𝑓(𝑥)=𝑎𝑥²+𝑏𝑥+𝑐, 𝒜∪ℬ, 𝔸 𝖠 𝙰 𝟏𝟐𝟑", -0.1, 0.1),
    "emoji": ("Great job 😀👍 see you! 🎉🎉 Love it ❤️😂😂 🙏 🚀🔥 👌 🤔 👋 👍🏽 👩🏿‍💻 🇫🇷 🪀🫒", -0.1, 0.2),
    "Arabic with vowel signs": ("ذَهَبْنَا بَعْدَ ظُهْرِ أَمْسِ إِلَى الْمِينَاءِ حَيْثُ كَانَ الصَّيَّادُونَ يُفْرِغُونَ صَيْدَهُمْ. ", -0.45, 0.0),
    "Kurdish": (
        "ئەم کتێبخانەیە سەد ساڵ لەمەوبەر دروست کراوە و لە بنەڕەتدا بانک بووە. "
        "ئێستا هەموو شەممەیەک چیرۆک بۆ منداڵان دەخوێننەوە.",
        -0.35,
        0.0,
    ),
    "classical Chinese": ("北冥有魚，其名為鯤。鯤之大，不知其幾千里也。化而為鳥，其名為鵬。", -0.35, 0.0),
    "DNA": (drawn("ACGT", 40), -0.15, 0.05),
    "protein": (drawn("ACDEFGHIKLMNPQRSTVWY", 40), -0.2, 0.05),
    "random letters": (drawn(LETTERS, 10, 200), -0.25, 0.05),
    "base32": (base64.b32encode(random.Random(4).randbytes(2_000)).decode(), -0.15, 0.05),
    "base32, lower case": (base64.b32encode(random.Random(4).randbytes(2_000)).decode().lower(), -0.4, 0.0),
    "medicines": (
        "Patient presents with gastroesophageal reflux, hypercholesterolemia, paroxysmal supraventricular tachycardia; "
        "prescribed hydrochlorothiazide, atorvastatin, esomeprazole, methylprednisolone.",
        -0.15,
        0.1,
    ),
    "JSON in JSON": (nested(1), -0.05, 0.15),
    "JSON in JSON in JSON": (nested(2), -0.15, 0.1),
    "JSON in JSON, three times": (nested(3), -0.2, 0.1),
    "JSON": (nested(0), -0.1, 0.1),
    "Finnish": (
        "Hei, haluaisin tietää, miten voin palauttaa kaksi viikkoa sitten ostamani tuotteen. Kuulokkeet lakkasivat "
        "toimimasta ja haluaisin rahani takaisin.",
        -0.45,
        0.0,
    ),
    "Swahili": (
        "Habari, ningependa kujua jinsi ya kurudisha bidhaa niliyonunua wiki mbili zilizopita. Vipokea sauti vimeacha "
        "kufanya kazi na ningependa kurudishiwa pesa zangu.",
        -0.45,
        0.0,
    ),
    "Zulu": (
        "Izolo ntambama siye ethekwini, lapho abadobi bebethulula khona izinhlanzi zabo futhi bephikisana ngesimo "
        "sezulu.",
        -0.5,
        0.0,
    ),
}


def error(text: str) -> float:
    exact = TokenizerCounter().count_text(text)
    return EstimatingCounter("openai").count_text(text) / exact - 1


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_sentence_of_a_script_is_near_its_exact_count(name: str) -> None:
    """Those that the vocabulary does not know take two or three tokens a character."""
    pytest.importorskip("bpe_openai")
    for sentence in SCRIPTS[name]:
        assert -0.3 <= error(sentence) <= 0.4
    assert -0.25 <= error("\n".join(SCRIPTS[name] * 3)) <= 0.25


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_prose_is_within_its_bounds(name: str) -> None:
    pytest.importorskip("bpe_openai")
    text, low, high = OTHERS[name]
    assert low <= error(text) <= high


def test_digits_that_may_be_tokens_each_are_counted_between_both_kinds_of_tokenizers() -> None:
    """In thirds by some models that have no figures of their own, one by one by others."""
    text = "31415926535897932384" * 30
    thirds, generic = EstimatingCounter("openai").count_text(text), EstimatingCounter("generic").count_text(text)
    assert thirds == pytest.approx(len(text) / 3, rel=0.02)
    assert 0.7 * len(text) <= generic <= 0.75 * len(text)


class Exact:
    """A provider that reports the exact size of each request."""

    info = ProviderInfo(name="openai", model="gpt-4o")

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def send(self, request: ChatRequest) -> ChatStream:
        self.sizes.append(sum(map(TokenizerCounter().count_message, request.messages)))
        answer = Message.assistant("Yes.")
        done = ChatUpdate(message_done=answer, usage=Usage(self.sizes[-1], 2), finish_reason="stop")
        return await ChatStream.primed(updates_of(done))


async def updates_of(done: ChatUpdate) -> AsyncGenerator[ChatUpdate]:
    yield done


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Amharic", "Lao", "Dhivehi", "Inuktitut"])
def test_a_guard_keeps_a_conversation_in_such_a_script_within_its_limit(name: str) -> None:
    pytest.importorskip("bpe_openai")
    provider = Exact()
    client = ChatStack(provider).use(ContextWindowGuard, max_context_tokens=8_000, prune_on_overflow=True).build()

    async def talk() -> None:
        history: list[Message] = []
        for turn in range(30):
            history.append(Message.user(f"{turn}: " + " ".join(SCRIPTS[name] * 3)))
            history += (await client.get_response(history, conversation_id="c")).messages

    asyncio.run(talk())
    whole = 30 * TokenizerCounter().count_text(" ".join(SCRIPTS[name] * 3))
    assert max(provider.sizes) <= 8_000 < whole
